"""Labels of meaning: what is wrong with a well-formed call, or with what the assistant says, in the present state.

Like the expert it reads only what the assistant could know, so that a label never asks for more than that.
"""

from __future__ import annotations

from typing import Any

from envs.calls import Language
from envs.contract import Label
from envs.food_order.expert import Expert
from envs.food_order.tasks import DISTRACTORS, OPTION_VALUES
from envs.food_order.texts import Said, fact_value
from envs.food_order.words import meant_as


class Judge:
    """Judges one state."""

    def __init__(self, state: dict[str, Any], settings: dict[str, Any], language: Language) -> None:
        self.state, self.settings = state, settings
        self.expert = Expert(state, settings, language)
        self.wishes = {self.expert.known(wish): wish for wish in state["want"]}

    # ---- Calls ---------------------------------------------------------------------------------------------------

    def called(self, name: str, arguments: dict[str, Any]) -> Label:
        """The label of a call whose arguments fit the schema of a tool of this level."""
        state = self.state
        if name in DISTRACTORS:
            return Label.WRONG_TOOL
        if name == "place_order":
            return Label.OK if state["confirmed"] and state["quote"] is not None else Label.POLICY_VIOLATION
        if "dish" in arguments:
            label = self.dish_call(name, arguments)
        elif name == "set_delivery":
            label = self.set_delivery(arguments)
        elif name == "apply_coupon":
            known = state["told_coupon"] is not None and meant_as(arguments["code"], "coupon") == state["told_coupon"]
            label = Label.OK if known else Label.HALLUCINATED_ARG
        elif name == "quote":
            complete = state["basket"] and all(slot in state["delivery"] for slot in self.settings["slots"])
            label = Label.OK if complete else Label.MISSING_INFO
        else:
            label = Label.OK
        return Label.NO_STOP if label is Label.OK and state["confirmed"] else label

    def dish_call(self, name: str, arguments: dict[str, Any]) -> Label:
        dish, basket = meant_as(arguments["dish"], "dish"), self.state["basket"]
        if name in ("update_item", "remove_item") and dish not in basket:
            return Label.WRONG_TOOL
        if name == "add_item" and dish in basket:
            return Label.WRONG_TOOL
        named = {*self.wishes, *basket, *(hit for hits in self.state["found"].values() for hit in hits)}
        if dish is None or dish not in named:
            return Label.HALLUCINATED_ARG
        if name == "get_dish":
            return Label.OK
        wish = self.wishes.get(dish)
        if name == "remove_item":
            return Label.WRONG_VALUE if wish else Label.OK
        if wish is None or ("quantity" in arguments and arguments["quantity"] != wish["quantity"]):
            return Label.WRONG_VALUE
        for option in OPTION_VALUES:
            if option in arguments and option not in wish:
                return Label.HALLUCINATED_ARG
            if option in arguments and meant_as(arguments[option], option) != wish[option]:
                return Label.WRONG_VALUE
        return Label.OK

    def set_delivery(self, arguments: dict[str, Any]) -> Label:
        told = self.state["told"]
        if any(slot not in told for slot in arguments):
            return Label.HALLUCINATED_ARG
        right = all(meant_as(written, slot) == told[slot] for slot, written in arguments.items())
        return Label.OK if right else Label.WRONG_VALUE

    # ---- Words ---------------------------------------------------------------------------------------------------

    def said(self, said: Said) -> Label:
        """The label of what the assistant says."""
        state = self.state
        if said.facts:
            return self.said_facts(said)
        if said.sorry:
            if not said.dishes:
                return Label.PREMATURE_STOP
            gone = [wish["dish"] for wish in state["want"] if wish["dish"] in state["sold_out"]]
            return Label.OK if set(said.dishes) & set(gone) else Label.WRONG_VALUE
        if said.bye:
            return Label.PREMATURE_STOP
        if state["confirmed"]:
            return Label.NO_STOP
        if state["questions"]:
            return Label.MISSING_INFO
        if said.total is not None:
            return self.said_summary(said)
        if said.asks:
            return Label.REDUNDANT_ASK if all(self.redundant(slot, said) for slot in said.asks) else Label.OK
        offered = set(said.dishes)
        unclear = [wish for wish in state["want"] if self.expert.known(wish) is None]
        if offered and unclear:
            shown_by_tools = {hit for hits in state["found"].values() for hit in hits}
            return Label.OK if offered <= shown_by_tools else Label.WRONG_VALUE
        return Label.MISSING_INFO

    def said_facts(self, said: Said) -> Label:
        if any(value != fact_value(dish, fact) for dish, fact, value in said.facts):
            return Label.WRONG_VALUE
        if any(dish not in self.state["looked"] for dish, _, _ in said.facts):
            return Label.MISSING_INFO
        return Label.OK

    def said_summary(self, said: Said) -> Label:
        state = self.state
        basket = {dish: (e["quantity"], e.get("size"), e.get("spice")) for dish, e in state["basket"].items()}
        if dict(said.items) != basket or not set(state["delivery"].values()) <= said.values:
            return Label.WRONG_VALUE
        if state["quote"] is None:
            return Label.MISSING_INFO
        return Label.OK if said.total == state["quote"] else Label.WRONG_VALUE

    def redundant(self, slot: str, said: Said) -> bool:
        state = self.state
        if slot == "more":
            return state["closed"]
        if slot in OPTION_VALUES:
            asked = [wish for dish, wish in self.wishes.items() if dish in said.dishes] or state["want"]
            return slot not in self.settings["options"] or all(slot in wish for wish in asked)
        return slot == "dish" or slot not in self.settings["slots"] or slot in state["told"]
