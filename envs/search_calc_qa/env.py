"""The search-and-calculate environment: a question, a small library to look things up in, a calculator, one answer.

The state of an episode is four things: which subjects a search has listed, which pages have been read (both as bit
sets), what the calculator has shown, and which tools will still fail.  `judging` labels actions on the same state.
"""

from __future__ import annotations

import itertools
import random
from typing import Any

from envs.base import DialogueEnv
from envs.calls import Language, Tool, ToolDown, ToolError
from envs.contract import AssistantMessage, Label, Level, Message, ParseStatus, ToolCall, call
from envs.search_calc_qa import judging, lexicon, programs, texts
from envs.search_calc_qa.calculator import CalculatorError, as_float, calculate, canonical, display
from envs.search_calc_qa.knowledge import Layout, layout_of
from envs.search_calc_qa.levels import LEVELS
from envs.search_calc_qa.tools import make_tools


class SearchCalcQAEnv(DialogueEnv):
    """See `envs.contract.AgentEnv`.  `finish` ends the episode, right or wrong; else only the turn limit does."""

    errors = (
        "invalid_json",
        "unknown_tool",
        "missing_argument",
        "no_such_page",
        "nothing_found",
        "not_a_number",
        "division_by_zero",
    )
    reachable_labels = DialogueEnv.reachable_labels | judging.LABELS

    # ---- What is asked and with which tools ----------------------------------------------------------------------

    @classmethod
    def levels(cls) -> tuple[Level, ...]:
        return LEVELS

    @classmethod
    def tools_for(cls, level: Level, language: Language) -> dict[str, Tool]:
        return make_tools(language)

    @classmethod
    def make_task(cls, level: Level, rng: random.Random) -> dict[str, Any]:
        return programs.make_task(level, rng)

    def enter(self) -> None:
        level, number = self.level.index, self.task["layout"]
        self.layout: Layout = layout_of(level, number)
        self.index = texts.search_index(level, number, self.language)
        self.titles = texts.pages_by_title(level, number, self.language)
        chains: list[list[int]] = self.task["chains"]
        #: the subjects to look up, in the order in which the expert does, and the one that each is learnt from
        self.needed: tuple[int, ...] = tuple(subject for chain in chains for subject in chain)
        self.learnt_from = {b: a for chain in chains for a, b in itertools.pairwise(chain)}
        self._to_read = {s: sum(1 << page for page in self.layout.pages_to_read(s)) for s in self.needed}
        self._listed_with: dict[int, int] = {}
        self._page_texts: dict[int, str] = {}

    def system_text(self) -> str:
        return texts.system(self.level.settings["stale"], self.compact_tools, self.language)

    def begin(self) -> list[Message]:
        self.state = {"down": dict(self.task["down"]), "listed": 0, "read": 0, "results": []}
        return [Message("user", texts.question(self.layout, self.task, self.language))]

    # ---- What is known -------------------------------------------------------------------------------------------

    def is_listed(self, subject: int) -> bool:
        return bool(self.state["listed"] >> subject & 1)

    def is_read(self, page: int) -> bool:
        return bool(self.state["read"] >> page & 1)

    def is_known(self, subject: int) -> bool:
        """Whether all that has to be read to know the latest facts on a needed subject has been read."""
        return not self._to_read[subject] & ~self.state["read"]

    def unknown(self) -> list[int]:
        """The needed subjects that are not known yet, in the expert's order."""
        unread = ~self.state["read"]
        return [subject for subject, pages in self._to_read.items() if pages & unread]

    def operands(self) -> list[int | None]:
        """The latest number at the end of each chain; None where it is not known yet."""
        ends = (chain[-1] for chain in self.task["chains"])
        return [self._latest_number(end) if self.is_known(end) else None for end in ends]

    def _latest_number(self, subject: int) -> int:
        return self.task["numbers"][self.layout.subjects[subject].latest][self.task["attribute"]]

    def shown_answer(self) -> float | None:
        """The answer as a page or the calculator has shown it; None while a look-up or the calculation is missing."""
        if self.unknown():
            return None
        if self.task["operation"] == "value":
            return self.task["answer"]
        return next((r for r in self.state["results"] if programs.right(r, self.task["answer"])), None)

    # ---- What the tools and the user answer ----------------------------------------------------------------------

    def call_tool(self, name: str, arguments: dict[str, Any]) -> str:
        if name == "search":
            return self._search(arguments["query"])
        if name == "open":
            return self._open(arguments["page"])
        if name == "calculator":
            return self._calculate(arguments["expression"])
        right = programs.right(as_float(arguments["answer"]), self.task["answer"])
        self.finish(right and lexicon.unit_key(arguments["unit"]) == self.task["unit"])
        return self._stated("right" if self.state["success"] else "wrong")

    def _fail_in_turn(self, tool: str) -> None:
        """Raises ToolDown once, on the call that the task says, counting only those that would have worked."""
        left = self.state["down"].get(tool)
        if left == 1:
            del self.state["down"][tool]
            raise ToolDown(self._stated(f"{tool}_down"))
        if left is not None:
            self.state["down"][tool] = left - 1

    def find(self, query: str) -> tuple[int, ...]:
        """The subjects that a search for `query` lists."""
        return self.index.search(texts.fold(query), self.level.settings["results"])

    def _search(self, query: str) -> str:
        found = self.find(query)
        if not found:
            raise ToolError(self._stated("nothing_found"))
        self._fail_in_turn("search")
        pages = [page for subject in found for page in self.layout.subjects[subject].pages]
        for subject in found:
            self.state["listed"] |= 1 << subject
        if not self.level.settings["preview"]:
            return "\n".join(texts.title(self.layout, page, self.language) for page in pages)
        for page in pages:
            self.state["read"] |= 1 << page
        return "\n".join(self._page_text(page) for page in pages)

    def _open(self, title: str) -> str:
        page = self.titles.get(texts.fold(title))
        if page is None or not self.is_listed(self.layout.pages[page].subject):
            raise ToolError(self._stated("no_such_page"))
        self._fail_in_turn("open")
        self.state["read"] |= 1 << page
        return self._page_text(page)

    def _page_text(self, page: int) -> str:
        text = self._page_texts.get(page)
        if text is None:
            text = texts.page_text(self.layout, page, self.task["numbers"][page], self.language)
            self._page_texts[page] = text
        return text

    def _calculate(self, expression: str) -> str:
        try:
            shown = display(calculate(expression))
        except CalculatorError as error:
            raise ToolError(self._stated(error.fault)) from None
        self.state["results"] = sorted({*self.state["results"], float(shown)})
        return shown

    def _stated(self, key: str) -> str:
        return texts.STATED[key][self.language]

    def hear(self, text: str) -> list[Message]:
        return [Message("user", self._stated(self.meaning(text)))]

    def meaning(self, text: str) -> str:
        if not text.strip():
            return "silent"
        return "asked" if text.rstrip().endswith(("?", "？")) else "told"

    def canonical_argument(self, name: str, key: str, value: Any) -> Any:
        if key == "answer":
            finite = as_float(value)
            return round(finite, 2) if abs(finite) < 1e12 else value
        if not isinstance(value, str):
            return value
        if key == "expression":
            return canonical(value)
        return (lexicon.unit_key(value) if key == "unit" else None) or texts.fold(value)

    # ---- Expert and labels ---------------------------------------------------------------------------------------

    def advise(self) -> tuple[AssistantMessage, list[AssistantMessage]]:
        """Looks up the first subject in the question whose facts are missing; then calculates, once; then finishes."""
        unknown = self.unknown()
        if unknown:
            actions = self._lookups(unknown)
        elif (answer := self.shown_answer()) is not None:
            unit = texts.unit(self.task["unit"], self.language)
            actions = [call("finish", answer=int(answer) if answer == int(answer) else answer, unit=unit)]
        else:
            ways = programs.expressions(self.task["operation"], self.known_values(), self.task["factor"])
            actions = [call("calculator", expression=way) for way in ways]
        return actions[0], actions[1:]

    def known_values(self) -> list[int]:
        return [value for value in self.operands() if value is not None]

    def _lookups(self, unknown: list[int]) -> list[AssistantMessage]:
        """Searches and openings that bring the expert one turn nearer, its own choice first."""
        listed = self.state["listed"]
        fewest = self._searches_left(unknown, listed)
        actions: list[AssistantMessage] = []
        for subject in unknown:
            source = self.learnt_from.get(subject)
            if source is not None and not self.is_known(source):
                continue
            if self.is_listed(subject):
                unread = [page for page in self.layout.pages_to_read(subject) if not self.is_read(page)]
                actions += [call("open", page=texts.title(self.layout, page, self.language)) for page in unread]
            elif not actions or self._searches_left(unknown, listed | self._lists(subject)) < fewest:
                actions.append(call("search", query=texts.name(self.layout, subject, self.language)))
        return actions

    def _searches_left(self, unknown: list[int], listed: int) -> int:
        """How often the expert will search, given that a search may also list what is needed later."""
        searches = 0
        for subject in unknown:
            if not listed >> subject & 1:
                searches += 1
                listed |= self._lists(subject)
        return searches

    def _lists(self, subject: int) -> int:
        """What a search for the name of a subject lists: the subject itself (tested on every layout), and more."""
        listed = self._listed_with.get(subject)
        if listed is None:
            found = self.find(texts.name(self.layout, subject, self.language))
            listed = self._listed_with[subject] = sum(1 << one for one in found)
        return listed

    def judge(self, action: AssistantMessage, tool_call: ToolCall | None) -> Label:
        if tool_call is None:
            return Label.REDUNDANT_ASK if self.meaning(action.content) == "asked" else Label.PREMATURE_STOP
        return judging.judge_call(self, tool_call.name, tool_call.arguments or {})

    # ---- Injected errors -----------------------------------------------------------------------------------------

    def inject(self, error: str, rng: random.Random) -> AssistantMessage:
        here = {subject.name for subject in self.layout.subjects}
        absent = getattr(rng.choice([name for name in lexicon.TOWN_NAMES if name not in here]), self.language)
        start = texts.name(self.layout, rng.choice(self.task["chains"])[0], self.language)
        word = getattr(rng.choice(lexicon.UNKNOWN_WORDS), self.language)
        match error:
            case "invalid_json":
                raw = f'{{"name": "search", "arguments": {{"query": "{start}}}}}'
                return AssistantMessage(tool_calls=(ToolCall("", None, ParseStatus.INVALID_JSON, raw),))
            case "unknown_tool":
                return call(rng.choice(("lookup", "browse", "answer")), query=start)
            case "missing_argument":
                return call(rng.choice(("search", "open", "calculator")))
            case "no_such_page":
                return call("open", page=absent)
            case "nothing_found":
                return call("search", query=word)
            case "not_a_number":
                return call("calculator", expression=f"{start} + {absent}")
            case "division_by_zero":
                return call("calculator", expression=f"{rng.randint(2, 30)} / 0")
        raise ValueError(f"inject: unknown error {error!r}; known are {self.errors}")
