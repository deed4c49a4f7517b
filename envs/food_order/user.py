"""The simulated user: an agenda of wishes told bit by bit, who checks what is read back and states what is wrong.

The agenda lives in the episode's `state` (see `first_state`).  The user never lies about its wishes, and ends the
dialogue only after it has seen the order placed, or after a final refusal.

Its budget is a wish, not a limit: it objects to the first total above it, leaves out a dish where it wants two or more
and one is in stock, and then pays what the order costs.
"""

from __future__ import annotations

from typing import Any

from envs.calls import Language
from envs.food_order.tasks import MENU, OPTION_VALUES
from envs.food_order.texts import SAY, Said, fact_value, item_text, items_text, understand, with_slips
from envs.food_order.words import misspelt, shown
from envs.snapshots import copy_tree

#: refusals without a reason that the user takes before it gives up
PATIENCE = 2


def first_state(task: dict[str, Any], settings: dict[str, Any]) -> dict[str, Any]:
    """The state of a new episode, as plain JSON."""
    return {
        # the world
        "basket": {}, "delivery": {}, "coupon": None, "quote": None, "placed": False,
        # what the tools have shown the assistant
        "looked": [], "found": {}, "sold_out": [],
        # what the user has said so far: `want` holds what was told of each dish, `heard` how a dish was described
        "want": [], "told": {}, "told_coupon": None, "closed": settings["items"][1] == 1, "questions": [],
        "confirmed": False,
        # what the user has in mind
        "goal": copy_tree(task["items"]), "slots": dict(task["slots"]), "want_coupon": task["coupon"],
        "left": [item["dish"] for item in task["items"]], "changes": copy_tree(task["changes"]),
        "budget": task["budget"], "noise": dict(task["noise"]), "facts": dict(task["facts"]),
        "refusals": 0, "spoken": 0, "finished": False, "success": False,
    }  # fmt: skip


class User:
    """Reads and changes `state`; every method that speaks returns one message's text."""

    def __init__(
        self, state: dict[str, Any], task: dict[str, Any], settings: dict[str, Any], language: Language, style: int
    ) -> None:
        self.state, self.task, self.settings, self.style = state, task, settings, style
        self.language: Language = language

    # ---- Speaking ------------------------------------------------------------------------------------------------

    def word(self, event: str, **words: Any) -> str:
        variants = SAY[self.language][event]
        return variants[(self.style + self.state["spoken"]) % len(variants)].format(**words)

    def speak(self, *sentences: str) -> str:
        """One message; a message in turn with the task's list is hastily typed."""
        number = self.state["spoken"]
        self.state["spoken"] = number + 1
        text = (" " if self.language == "en" else "").join(sentence for sentence in sentences if sentence)
        typos = self.task["typos"]
        return with_slips(text, self.language) if typos[number % len(typos)] else text

    def start(self) -> str:
        opening = "first_only" if self.state["closed"] else "first"
        parts = [self.word(opening, items=self.mention(self.settings["items_per_turn"]))]
        parts += self.volunteer(self.settings["upfront"])
        if self.state["budget"]:
            parts.append(self.word("budget", v=self.state["budget"]))
        return self.speak(*parts, *self.ask_facts())

    def mention(self, count: int) -> str:
        """Tells the next dishes of the agenda."""
        texts: list[str] = []
        for dish in self.state["left"][:count]:
            item = self.goal_item(dish)
            wish: dict[str, Any] = {"dish": dish, "quantity": item["quantity"], "heard": self.described(dish)}
            if dish in self.task["options_told"]:
                wish.update({option: item[option] for option in self.settings["options"]})
            self.state["want"].append(wish)
            texts.append(item_text(wish, self.language, wish["heard"]))
        self.state["left"] = self.state["left"][count:]
        return items_text(texts, self.language)

    def described(self, dish: str) -> str | None:
        """How a dish is named when it is not named rightly."""
        manner = self.task["vague"].get(dish)
        if manner is None or dish in self.task["out_of_stock"]:
            return None
        return shown(MENU[dish][1], self.language) if manner == "kind" else misspelt(dish, self.language)

    def wish_text(self, wish: dict[str, Any]) -> str:
        return item_text(wish, self.language, wish["heard"])

    def volunteer(self, count: int) -> list[str]:
        """Tells up to `count` order slots that nobody asked for."""
        untold = [slot for slot in self.settings["slots"] if slot not in self.state["told"]][:count]
        return [self.tell_slot(slot) for slot in untold]

    def tell_slot(self, slot: str) -> str:
        value = self.state["slots"][slot]
        self.state["told"][slot] = value
        return self.word(slot, v=shown(value, self.language))

    def ask_facts(self) -> list[str]:
        """Asks what it wants to know of the dishes that it has named."""
        for wish in self.state["want"]:
            if wish["heard"] is None and wish["dish"] in self.state["facts"]:
                self.state["questions"].append([wish["dish"], self.state["facts"].pop(wish["dish"])])
        return self.open_questions()

    def open_questions(self) -> list[str]:
        return [self.word(fact, d=shown(dish, self.language)) for dish, fact in self.state["questions"]]

    def goal_item(self, dish: str) -> dict[str, Any]:
        return next(item for item in self.state["goal"] if item["dish"] == dish)

    def goal_dishes(self) -> list[str]:
        return [item["dish"] for item in self.state["goal"]]

    # ---- Hearing -------------------------------------------------------------------------------------------------

    def hear(self, text: str) -> str:
        """The user's answer to what the assistant said."""
        said, state = understand(text, self.language), self.state
        if said.empty:
            return self.speak(self.word("hello"))
        if said.facts:
            return self.hear_facts(said)
        if said.sorry:
            return self.hear_sorry(said)
        if state["questions"]:
            return self.speak(*self.open_questions())
        if said.total is not None:
            return self.hear_summary(said)
        if said.asks:
            return self.hear_question(said)
        if said.items:
            return self.correct(said) if self.wrong_items(said) else self.speak(self.word("total"))
        if said.dishes:
            return self.hear_options(said)
        return self.speak(self.word("waiting" if said.bye else "what"))

    def hear_facts(self, said: Said) -> str:
        questions = self.state["questions"]
        for dish, fact, value in said.facts:
            if value != fact_value(dish, fact):
                return self.speak(self.word("check"))
            if [dish, fact] in questions:
                questions.remove([dish, fact])
        if questions:
            return self.speak(*self.open_questions())
        if self.state["placed"]:
            return self.leave()
        return self.speak(self.word("thanks"))

    def hear_sorry(self, said: Said) -> str:
        state, stock = self.state, self.task["out_of_stock"]
        wanted = [wish["dish"] for wish in state["want"] if wish["heard"] is None]
        gone = [dish for dish in said.dishes if dish in stock and dish in wanted]
        if gone:
            return self.do_without(gone[0])
        if said.dishes:
            return self.speak(self.word("check"))
        state["refusals"] += 1
        if state["refusals"] < PATIENCE:
            return self.speak(self.word("insist"))
        text = self.speak(self.word("nothing"))
        state["finished"], state["success"] = True, False
        return text

    def do_without(self, dish: str) -> str:
        """Takes the fallback of a dish that is out of stock, or leaves it; with nothing left, goes."""
        state, fallback = self.state, self.task["out_of_stock"][dish]
        state["questions"] = [question for question in state["questions"] if question[0] != dish]
        if fallback is None:
            self.drop(dish)
            if not state["goal"]:
                text = self.speak(self.word("nothing"))
                state["finished"], state["success"] = True, not state["placed"]
                return text
            return self.speak(self.word("leave", d=shown(dish, self.language)))
        self.swap(dish, fallback)
        wish = next(wish for wish in state["want"] if wish["dish"] == fallback)
        return self.speak(self.word("instead", items=item_text(wish, self.language)))

    def hear_summary(self, said: Said) -> str:
        state = self.state
        if self.wrong_items(said) or not set(state["slots"].values()) <= said.values:
            return self.correct(said)
        if state["quote"] is None:
            return self.speak(self.word("no_quote"))
        if said.total != state["quote"]:
            return self.speak(self.word("not_total"))
        more = self.change() or self.tell_coupon()
        if more:
            return self.speak(more)
        if state["budget"] and said.total > state["budget"]:
            spare = [dish for dish in self.goal_dishes() if dish not in self.task["out_of_stock"]]
            state["budget"] = None
            if len(state["goal"]) > 1 and spare:
                self.drop(spare[-1])
                return self.speak(self.word("over"), self.word("drop", d=shown(spare[-1], self.language)))
        state["confirmed"] = True
        return self.speak(self.word("yes"))

    def wrong_items(self, said: Said) -> bool:
        return dict(said.items) != {dish: self.asked_for(dish) for dish in self.goal_dishes()}

    def correct(self, said: Said) -> str:
        """States that what was read back is wrong, and says again the wishes that were not met."""
        state = self.state
        read = dict(said.items)
        told = {wish["dish"] for wish in state["want"]}
        if any(read.get(dish) != self.asked_for(dish) for dish in told) or set(read) - set(self.goal_dishes()):
            items = items_text([self.wish_text(wish) for wish in state["want"]], self.language)
            return self.speak(self.word("not_ordered"), self.word("want", items=items))
        if state["left"]:
            more = self.word("want", items=self.mention(self.settings["items_per_turn"]))
            return self.speak(self.word("not_ordered"), more, *self.ask_facts())
        slot = next(slot for slot, value in state["slots"].items() if value not in said.values)
        return self.speak(self.word("not_ordered"), self.tell_slot(slot))

    def asked_for(self, dish: str) -> tuple[int, str | None, str | None]:
        item = self.goal_item(dish)
        return item["quantity"], item.get("size"), item.get("spice")

    def hear_options(self, said: Said) -> str:
        """Picks its dish from those that the assistant offers."""
        unclear = [wish for wish in self.state["want"] if wish["heard"] is not None]
        unclear.sort(key=lambda wish: self.task["vague"].get(wish["dish"]) != "kind")
        for wish in unclear:
            if wish["dish"] in said.dishes:
                wish["heard"] = None
                pick = self.word("pick", v=shown(wish["dish"], self.language))
                return self.speak(pick, *self.ask_facts())
        if unclear:
            return self.speak(self.word("none"), self.word("want", items=self.wish_text(unclear[0])))
        return self.speak(self.word("what"))

    # ---- Answering -----------------------------------------------------------------------------------------------

    def hear_question(self, said: Said) -> str:
        asked = said.asks[: max(1, self.settings["slots_per_turn"])]
        noise: str | None = self.state["noise"].pop(asked[0], None)
        if noise is not None:
            return self.speak(self.word("silent" if noise == "silence" else noise))
        sentences: list[str] = []
        for slot in asked:
            sentences += self.answer(slot, said)
        if asked[0] in self.state["slots"]:
            sentences += self.volunteer(self.settings["slots_per_turn"] - len(asked))
        return self.speak(*sentences)

    def answer(self, slot: str, said: Said) -> list[str]:
        state = self.state
        if slot == "more":
            return self.answer_more()
        if slot == "dish":
            return [
                self.word("want", items=items_text([self.wish_text(wish) for wish in state["want"]], self.language))
            ]
        if slot in OPTION_VALUES:
            return [self.answer_option(slot, said)]
        if slot not in state["slots"]:
            return [self.word("mind")]
        return [self.tell_slot(slot)]

    def answer_more(self) -> list[str]:
        state = self.state
        if state["left"]:
            return [self.word("items", items=self.mention(self.settings["items_per_turn"])), *self.ask_facts()]
        sentences = [self.word("all")]
        first_time, state["closed"] = not state["closed"], True
        sentences.append(self.tell_coupon())
        if first_time and state["changes"] and state["changes"][0][0] in ("quantity", "swap"):
            sentences.append(self.change())
        return sentences

    def tell_coupon(self) -> str:
        """Tells the coupon once; empty where there is none, or it has been told."""
        coupon = self.state["want_coupon"]
        if not coupon or self.state["told_coupon"]:
            return ""
        self.state["told_coupon"] = coupon
        return self.word("coupon", v=shown(coupon, self.language))

    def answer_option(self, option: str, said: Said) -> str:
        """The option of the dish named in the question, or else of the first dish whose option is not told."""
        if option not in self.settings["options"]:
            return self.word("mind")
        wishes = [wish for wish in self.state["want"] if wish["dish"] in said.dishes and wish["heard"] is None]
        wishes = wishes or [wish for wish in self.state["want"] if option not in wish] or self.state["want"]
        wish = wishes[0]
        wish[option] = self.goal_item(wish["dish"])[option]
        return self.word(option, v=shown(wish[option], self.language))

    # ---- Changing its mind ---------------------------------------------------------------------------------------

    def change(self) -> str:
        """Tells the next change of mind that still makes sense; empty when there is none."""
        state = self.state
        while state["changes"]:
            kind, what, *rest = state["changes"].pop(0)
            if kind == "slot":
                state["slots"][what] = rest[0]
                state["told"][what] = rest[0]
                return self.word("slot", v=shown(rest[0], self.language))
            dishes = self.goal_dishes()
            if what not in dishes or (kind == "drop" and len(dishes) < 2):
                continue
            dish = shown(what, self.language)
            if kind == "quantity":
                self.goal_item(what)["quantity"] = rest[0]
                for wish in state["want"]:
                    if wish["dish"] == what:
                        wish.update(quantity=rest[0], heard=None)
                return self.word("quantity", n=rest[0], d=dish)
            if kind == "drop":
                self.drop(what)
                return self.word("drop", d=dish)
            self.swap(what, rest[0])
            return self.word("swap", o=dish, d=shown(rest[0], self.language))
        return ""

    def drop(self, dish: str) -> None:
        for part in ("goal", "want"):
            self.state[part] = [item for item in self.state[part] if item["dish"] != dish]

    def swap(self, dish: str, other: str) -> None:
        self.goal_item(dish)["dish"] = other
        for wish in self.state["want"]:
            if wish["dish"] == dish:
                wish.update(dish=other, heard=None)

    # ---- Ending --------------------------------------------------------------------------------------------------

    def saw_placed(self) -> str:
        """What the user says when it sees the order placed: its open question, or goodbye."""
        return self.speak(*self.open_questions()) if self.state["questions"] else self.leave()

    def leave(self) -> str:
        text = self.speak(self.word("bye"))
        self.state["finished"], self.state["success"] = True, self.satisfied()
        return text

    def satisfied(self) -> bool:
        """Whether the placed order equals the goal, and every fact that was asked for has been told."""
        state = self.state
        basket = [{"dish": dish, **entry} for dish, entry in state["basket"].items()]
        same = sorted(basket, key=lambda item: item["dish"]) == sorted(state["goal"], key=lambda item: item["dish"])
        slots = {slot: state["delivery"].get(slot) for slot in state["slots"]} == state["slots"]
        return same and slots and state["coupon"] == state["want_coupon"] and not state["questions"]
