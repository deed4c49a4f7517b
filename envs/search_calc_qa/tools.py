"""The four tools as the assistant sees them: names, descriptions and argument schemas, in both languages."""

from __future__ import annotations

from envs.calls import Language, Tool

_DESCRIPTIONS: dict[str, dict[Language, str]] = {
    "search": {"en": "Lists pages about a name.", "zh": "按名称列出页面。"},
    "open": {"en": "Shows a page that a search has listed, by its title.", "zh": "按标题显示搜索列出的页面。"},
    "calculator": {"en": "Works out numbers with + - * / and brackets.", "zh": "用 + - * / 和括号计算。"},
    "finish": {"en": "Gives the answer and its unit; ends the dialogue.", "zh": "给出答案和单位；结束对话。"},
}
_ARGUMENTS: dict[str, dict[str, str]] = {
    "search": {"query": "string"},
    "open": {"page": "string"},
    "calculator": {"expression": "string"},
    "finish": {"answer": "number", "unit": "string"},
}


def make_tools(language: Language) -> dict[str, Tool]:
    """The tools by name.  Every argument is required and no other is allowed."""
    return {
        name: Tool(
            name,
            _DESCRIPTIONS[name][language],
            {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in arguments.items()},
                "required": list(arguments),
                "additionalProperties": False,
            },
        )
        for name, arguments in _ARGUMENTS.items()
    }
