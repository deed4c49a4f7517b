"""The expert: what a careful assistant does next, from what it has been told and shown and nothing else.

Of `state` only the parts "the world", "what the tools have shown" and "what the user has said" are read (see
`user.first_state`); a dish that the user has described or misspelt is not known before the menu was searched.
"""

from __future__ import annotations

from typing import Any

from envs.calls import Language
from envs.contract import AssistantMessage, call, say
from envs.food_order.texts import ANSWER, ASK, fact_shown
from envs.food_order.tools import Kitchen
from envs.food_order.words import normal, shown


class Expert:
    """Advises on one state.  Its wording is fixed, so that a small model can learn it."""

    def __init__(self, state: dict[str, Any], settings: dict[str, Any], language: Language) -> None:
        self.state, self.settings = state, settings
        self.language: Language = language

    def advise(self) -> tuple[AssistantMessage, list[AssistantMessage]]:
        """One right action, and others that are as good."""
        state = self.state
        if state["questions"]:
            return self.answer_question(), []
        for wish in state["want"]:
            if wish["heard"] is None and wish["dish"] in state["sold_out"] and wish["dish"] not in state["basket"]:
                return say(self.answer("sorry", d=self.shown(wish["dish"]))), []
        searches = [call("search_menu", query=query) for query in self.unsearched()]
        if searches:
            return self.together(searches), searches[1:] if self.settings["calls_per_turn"] == 1 else []
        for wish in state["want"]:
            action = self.clear_up(wish)
            if action is not None:
                return action, []
        writes = self.writes()
        if writes:
            return self.together(writes), writes[1:] if self.settings["calls_per_turn"] == 1 else []
        questions = self.questions()
        if questions:
            return questions[0], questions[1:]
        if state["quote"] is None:
            return call("quote"), []
        if not state["confirmed"]:
            quote = Kitchen(state, {}, self.settings, self.language).quoted()
            return say(self.answer("confirm", quote=quote)), []
        return call("place_order"), []

    def shown(self, word: str) -> str:
        return shown(word, self.language)

    def answer(self, event: str, **words: str) -> str:
        return ANSWER[self.language][event].format(**words)

    def together(self, calls: list[AssistantMessage]) -> AssistantMessage:
        """The first calls as one message, as many as the level lets the expert make at once."""
        count = self.settings["calls_per_turn"]
        return AssistantMessage(tool_calls=tuple(one.tool_calls[0] for one in calls[:count]))

    def answer_question(self) -> AssistantMessage:
        questions, looked = self.state["questions"], self.state["looked"]
        dish, fact = questions[0]
        if dish not in looked:
            return self.together([call("get_dish", dish=self.shown(one)) for one, _ in questions if one not in looked])
        value = fact_shown(dish, fact, self.language)
        return say(self.answer("fact", d=self.shown(dish), f=self.shown(fact), v=value))

    def known(self, wish: dict[str, Any]) -> str | None:
        """The dish that a wish means, as far as the assistant can tell."""
        if wish["heard"] is None:
            return wish["dish"]
        found = self.state["found"].get(normal(wish["heard"]), ())
        return found[0] if len(found) == 1 else None

    def unsearched(self) -> list[str]:
        """Descriptions and misspelt names that the menu has not been searched for."""
        heard = [wish["heard"] for wish in self.state["want"] if wish["heard"] is not None]
        return [one for one in dict.fromkeys(heard) if normal(one) not in self.state["found"]]

    def clear_up(self, wish: dict[str, Any]) -> AssistantMessage | None:
        """What must be found out before the dish can be put into the order; None when all is clear."""
        dish = self.known(wish)
        if dish is None:
            found = self.state["found"][normal(wish["heard"])]
            return say(self.answer("options", items=", ".join(map(self.shown, found))))
        untold = [option for option in self.settings["options"] if option not in wish][
            : self.settings["slots_per_turn"]
        ]
        if not untold:
            return None
        return say(" ".join(ASK[self.language][option].format(d=self.shown(dish)) for option in untold))

    def writes(self) -> list[AssistantMessage]:
        """The calls that bring the order to what the user has said."""
        state, basket = self.state, self.state["basket"]
        wanted = {self.known(wish): wish for wish in state["want"]}
        actions = [call("remove_item", dish=self.shown(dish)) for dish in basket if dish not in wanted]
        for dish, wish in wanted.items():
            entry = basket.get(dish, {})
            fields = {key: wish[key] for key in ("quantity", *self.settings["options"]) if entry.get(key) != wish[key]}
            if fields:
                words = {key: self.shown(value) if isinstance(value, str) else value for key, value in fields.items()}
                actions.append(call("update_item" if entry else "add_item", dish=self.shown(str(dish)), **words))
        slots = {slot: value for slot, value in state["told"].items() if state["delivery"].get(slot) != value}
        if slots:
            actions.append(call("set_delivery", **{slot: self.shown(value) for slot, value in slots.items()}))
        if state["told_coupon"] and state["coupon"] != state["told_coupon"]:
            actions.append(call("apply_coupon", code=self.shown(state["told_coupon"])))
        return actions

    def questions(self) -> list[AssistantMessage]:
        """What to ask next; with one slot to an answer, the order does not matter."""
        untold = [] if self.state["closed"] else ["more"]
        untold += [slot for slot in self.settings["slots"] if slot not in self.state["told"]]
        if self.settings["slots_per_turn"] > 1:
            untold = untold[:1]
        return [say(ASK[self.language][slot]) for slot in untold]
