"""What is special about the search-and-calculate environment; what every one must hold is in `gates`."""

import random
from typing import ClassVar

import pytest

from envs.contract import AssistantMessage, Label, ParseStatus, ToolCall, call, say
from envs.search_calc_qa import SearchCalcQAEnv, lexicon, texts
from envs.search_calc_qa.calculator import display, numbers_in
from envs.search_calc_qa.judging import seen_names
from envs.search_calc_qa.levels import LEVELS
from envs.search_calc_qa.programs import CONSTANTS
from tests.envs.gates import Gates
from tests.envs.players import Talk, both_ways


def start(level=3, task=0, language="en", **options):
    env = SearchCalcQAEnv(level=level, language=language, **options)
    messages, info = env.reset(seed=0, options={"task": task})
    return env, messages, info


def start_with(operation, level=3, language="en"):
    """An episode whose question has that operation."""
    for task in range(200):
        env, messages, _ = start(level, task, language)
        if env.task["operation"] == operation:
            return env, messages
    raise AssertionError(f"no {operation} on level {level}")


def play(env, turns):
    """The expert plays so many turns."""
    for _ in range(turns):
        env.step(env.oracle().action)
    return env


def play_until(env, tool):
    """The expert plays until its next call is to `tool`."""
    while env.oracle().action.tool_calls[0].name != tool:
        env.step(env.oracle().action)
    return env


def answer_to(env, action):
    messages, *_ = env.step(action)
    return messages[-1].content


def a_name_not_here(env):
    here = {subject.name for subject in env.layout.subjects}
    return next(name.en for name in lexicon.TOWN_NAMES if name not in here)


def first_name(env):
    return texts.name(env.layout, env.needed[0], "en")


def at_level(env, level):
    env.reset(seed=0, options={"level": level, "task": 0})
    return env


def malformed(status):
    return lambda env: AssistantMessage(tool_calls=(ToolCall("search", None, status, "{"),))


def repeated(env):
    action = call("search", query=first_name(at_level(env, 2)))
    env.step(action)
    return action


def before(env, tool, level, action):
    """`action` at a moment when the expert's next call is to `tool`, on a level."""
    play_until(at_level(env, level), tool)
    return action


class TestSearchCalcQA(Gates):
    env_class = SearchCalcQAEnv
    env_id = "agentrl/SearchCalcQA-v0"
    talk = Talk(
        {
            "en": ("which town?", "12 trees", "the answer is 5", "hello", ""),
            "zh": ("哪个镇？", "12棵树", "答案是5", "您好", ""),
        },
        both_ways(
            {name.en: name.zh for name in (*lexicon.TOWN_NAMES, *lexicon.PERSON_NAMES)}
            | {noun.en: noun.zh for noun in lexicon.NOUNS.values()}
        ),
    )
    levels_without_room: ClassVar = frozenset({1})
    label_cases: ClassVar = {
        Label.TRUNCATED: lambda env: AssistantMessage("How", truncated=True),
        Label.INVALID_JSON: malformed(ParseStatus.INVALID_JSON),
        Label.UNCLOSED_BLOCK: malformed(ParseStatus.UNCLOSED_BLOCK),
        Label.MISSING_NAME: malformed(ParseStatus.MISSING_NAME),
        Label.MALFORMED_STRUCTURE: malformed(ParseStatus.MALFORMED_STRUCTURE),
        Label.UNKNOWN_TOOL: lambda env: call("browse", query="Oak Town"),
        Label.WRONG_TOOL: lambda env: before(env, "calculator", 3, call("search", query="lamps")),
        Label.ARGS_MISSING: lambda env: call("finish", answer=3),
        Label.ARGS_EXTRA: lambda env: call("search", query="Oak Town", limit=3),
        Label.ARGS_TYPE: lambda env: call("finish", answer="3", unit="trees"),
        Label.HALLUCINATED_ARG: lambda env: call("search", query=a_name_not_here(env)),
        Label.WRONG_VALUE: lambda env: before(env, "finish", 3, call("finish", answer=-1, unit=env.task["unit"])),
        Label.MISSING_INFO: lambda env: call("open", page=first_name(env)),
        Label.REPEATED_CALL: repeated,
        Label.REDUNDANT_ASK: lambda env: say("How many are there?"),
        Label.PREMATURE_STOP: lambda env: call("finish", answer=3, unit=env.task["unit"]),
        Label.NO_STOP: lambda env: before(env, "finish", 3, call("calculator", expression="1 + 1")),
        Label.REASONING_ERROR: lambda env: before(env, "calculator", 3, call("calculator", expression="1 + 1")),
        Label.OK: lambda env: call("search", query=first_name(env)),
    }


class TestStalePages:
    def stale(self, level):
        """An episode whose first needed subject is listed and has an old page; and the titles of old and latest."""
        for task in range(100):
            env, _, _ = start(level, task)
            subject = env.layout.subjects[env.needed[0]]
            if len(subject.pages) == 2:
                play_until(env, "open")
                old = next(page for page in subject.pages if page != subject.latest)
                return env, texts.title(env.layout, old, "en"), texts.title(env.layout, subject.latest, "en")
        raise AssertionError("no stale page")

    def test_where_titles_tell_the_year_the_expert_opens_the_latest_only(self):
        env, old, latest = self.stale(4)
        assert env.oracle().action == call("open", page=latest)
        assert env.label(call("open", page=old)) is Label.WRONG_VALUE

    def test_where_only_the_text_tells_the_year_the_expert_opens_both(self):
        env, old, latest = self.stale(6)
        for title in (old, latest):
            assert env.canonical(call("open", page=title)) in env.oracle().acceptable
            assert env.label(call("open", page=title)) is Label.OK

    def test_an_answer_from_an_old_page_is_wrong(self):
        for task in range(100):
            env, _, _ = start(4, task)
            end = env.layout.subjects[env.task["chains"][0][-1]]
            stale = [page for page in end.pages if page != end.latest]
            if env.task["operation"] == "product" and stale:
                count = env.task["numbers"][stale[0]][env.task["attribute"]]
                wrong = call("finish", answer=count * env.task["factor"], unit=env.task["unit"])
                assert play_until(env, "finish").label(wrong) is Label.WRONG_VALUE
                return
        raise AssertionError("no stale page")


class TestFailingTools:
    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_each_fails_once_says_so_and_the_same_call_again_is_right(self, language):
        env, _, _ = start(5, language=language)
        stated = {texts.STATED["search_down"][language], texts.STATED["open_down"][language]}
        down = []
        while env.oracle().steps_left > 1:
            action = env.oracle().action
            messages, _, _, _, info = env.step(action)
            if messages[-1].content in stated:
                down.append(messages[-1].content)
                assert info["label"] is Label.OK
                assert env.oracle().action == action
                assert env.label(action) is Label.OK
        assert set(down) == stated
        assert len(down) == 2

    def test_when_they_fail_is_part_of_the_task(self):
        assert start(5, 7)[0].task["down"] == start(5, 7, "zh")[0].task["down"]
        assert start(3)[0].task["down"] == {}


class TestFinish:
    def finish(self, env, **arguments):
        _, _, terminated, _, info = env.step(call("finish", **arguments))
        assert terminated
        return info

    @pytest.mark.parametrize(
        ("change", "success"),
        [(0, True), (0.04, True), (-0.04, True), (0.06, False), (1, False), (10**400, False), (float("nan"), False)],
    )
    def test_the_value_counts_within_tolerance(self, change, success):
        env, _ = start_with("difference")
        play_until(env, "finish")
        answer = int(env.task["answer"])
        info = self.finish(env, answer=answer + change, unit=env.task["unit"])
        assert info["success"] is success
        assert info["label"] is (Label.OK if success else Label.WRONG_VALUE)

    @pytest.mark.parametrize(
        ("unit", "success"), [("trees", True), (" Tree", True), ("棵树", True), ("bridges", False), ("", False)]
    )
    def test_the_unit_counts_however_it_is_spelt(self, unit, success):
        env = next(env for env in (start(1, task)[0] for task in range(100)) if env.task["attribute"] == "trees")
        play(env, 1)
        assert self.finish(env, answer=env.task["answer"], unit=unit)["success"] is success

    def test_saying_the_answer_is_not_giving_it(self):
        env, _, _ = start(1, max_turns=3)
        play(env, 1)
        messages, _, terminated, _, info = env.step(say(f"{env.task['answer']:.0f}"))
        assert not terminated
        assert info["label"] is Label.PREMATURE_STOP
        assert messages[-1].role == "user"
        assert play(env, 1).success


class TestLabels:
    """One case of meaning for each branch of `judging`; form is the base's."""

    def at(self, env, action):
        before = env.snapshot()
        label = env.label(action)
        assert env.snapshot() == before
        return label

    def test_search(self):
        env, _ = start_with("difference")
        first, second = (texts.name(env.layout, chain[0], "en") for chain in env.task["chains"])
        unseen = next(name.en for name in lexicon.TOWN_NAMES if name not in {s.name for s in env.layout.subjects})
        assert self.at(env, call("search", query=f"the place {first.upper()}")) is Label.OK
        assert self.at(env, call("search", query=second)) is Label.OK
        assert self.at(env, call("search", query=unseen)) is Label.HALLUCINATED_ARG
        assert self.at(env, call("search", query="volcano")) is Label.MISSING_INFO
        play(env, 1)
        assert self.at(env, call("search", query=first)) is Label.REPEATED_CALL
        play_until(env, "calculator")
        assert self.at(env, call("search", query=first)) is Label.WRONG_TOOL
        play(env, 1)
        assert self.at(env, call("search", query=first)) is Label.NO_STOP
        assert self.at(env, call("search", query=unseen)) is Label.HALLUCINATED_ARG

    def test_a_search_for_a_seen_name_that_is_not_needed_is_a_wrong_value(self):
        for task in range(100):
            env, _, _ = start(4, task)
            play_until(env, "open")
            env.step(env.oracle().action)
            seen = [
                texts.name(env.layout, s, "en")
                for s, subject in enumerate(env.layout.subjects)
                if subject.name.en in seen_names(env) and s not in env.needed and not env.is_listed(s)
            ]
            labels = {self.at(env, call("search", query=name)) for name in seen}
            if Label.WRONG_VALUE in labels:
                return
        raise AssertionError("not reached")

    def test_open(self):
        env, _ = start_with("difference")
        first = texts.name(env.layout, env.needed[0], "en")
        assert self.at(env, call("open", page=first)) is Label.MISSING_INFO
        assert answer_to(env, call("open", page=first)) == "error: no such page in the results"
        assert self.at(env, call("open", page="the sea")) is Label.HALLUCINATED_ARG
        play(env, 1)
        assert self.at(env, call("open", page=f" {first.upper()} ")) is Label.OK
        assert self.at(env, call("open", page=f"{first} 2030")) is Label.WRONG_VALUE
        play(env, 1)
        assert self.at(env, call("open", page=first)) is Label.REPEATED_CALL

    def test_calculator(self):
        env, _ = start_with("difference")
        assert self.at(env, call("calculator", expression="Oak Town - Red Hill")) is Label.MISSING_INFO
        assert self.at(env, call("calculator", expression="1 / 0")) is Label.HALLUCINATED_ARG
        assert self.at(env, call("calculator", expression="2 - 1")) is Label.MISSING_INFO
        play_until(env, "calculator")
        a, b = env.known_values()
        assert self.at(env, call("calculator", expression=f"{a}-{b}")) is Label.OK
        assert self.at(env, call("calculator", expression=f"{b} - {a}")) is Label.REASONING_ERROR
        assert self.at(env, call("calculator", expression=f"{a} - ")) is Label.REASONING_ERROR
        assert self.at(env, call("calculator", expression="Oak Town - 3")) is not Label.OK
        assert self.at(env, call("calculator", expression=f"{a} - 999")) is Label.HALLUCINATED_ARG
        play(env, 1)
        assert self.at(env, call("calculator", expression=f"{a} + {b}")) is Label.NO_STOP

    def test_there_is_nothing_to_calculate_in_a_look_up(self):
        env, _ = start_with("value")
        assert self.at(env, call("calculator", expression="1 + 1")) is Label.WRONG_TOOL
        play_until(env, "finish")
        assert self.at(env, call("calculator", expression="1 + 1")) is Label.NO_STOP

    def test_a_calculation_step_by_step_is_right_and_costs_the_expert_nothing(self):
        env, _ = start_with("average", level=6)
        play_until(env, "calculator")
        a, b = env.known_values()
        left = env.oracle().steps_left
        *_, info = env.step(call("calculator", expression=f"{b} + {a}"))
        assert info["label"] is Label.OK
        assert info["steps_left"] == left
        *_, info = env.step(call("calculator", expression=f"{a + b} / 2"))
        assert info["label"] is Label.OK
        assert info["steps_left"] == 1

    def test_finish(self):
        env, _ = start_with("difference")
        unit, answer = env.task["unit"], env.task["answer"]
        assert self.at(env, call("finish", answer=answer, unit=unit)) is Label.PREMATURE_STOP
        assert self.at(env, call("finish", answer=answer, unit="stones")) is Label.WRONG_VALUE
        play_until(env, "calculator")
        assert self.at(env, call("finish", answer=answer, unit=unit)) is Label.OK
        assert self.at(env, call("finish", answer=answer + 1, unit=unit)) is Label.REASONING_ERROR
        play(env, 1)
        assert self.at(env, call("finish", answer=answer + 1, unit=unit)) is Label.WRONG_VALUE

    def test_talk(self):
        env, _, _ = start()
        assert self.at(env, say("Which town do you mean?")) is Label.REDUNDANT_ASK
        assert self.at(env, say("你说的是哪里？")) is Label.REDUNDANT_ASK
        assert self.at(env, say("I do not know.")) is Label.PREMATURE_STOP
        assert self.at(env, AssistantMessage()) is Label.PREMATURE_STOP


class TestCanonical:
    """Two spellings are one action exactly where the tools answer both alike."""

    @pytest.mark.parametrize(
        ("one", "two", "same"),
        [
            (call("calculator", expression="12 - 11"), call("calculator", expression=" 12－11"), True),
            (call("calculator", expression="12 - 11"), call("calculator", expression="12\n- 11"), False),
            (call("calculator", expression="12"), call("calculator", expression="1 2"), False),
            (call("finish", answer=1, unit="trees"), call("finish", answer=1.0, unit=" Tree"), True),
            (call("finish", answer=1, unit="trees"), call("finish", answer=True, unit="trees"), False),
            (call("search", query="Oak Town"), call("search", query=" " * 300 + "oak  TOWN"), True),
        ],
    )
    def test_spelling(self, one, two, same):
        env, _, _ = start()
        assert (env.canonical(one) == env.canonical(two)) is same
        kept, answers = env.snapshot(), []
        for action in (one, two):
            answers.append(env.step(action)[0])
            env.restore(kept)
        assert (answers[0] == answers[1]) is same


class TestInject:
    @pytest.mark.parametrize("error", SearchCalcQAEnv.errors)
    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_what_is_injected_is_wrong_is_stated_and_costs_one_turn(self, error, language):
        for level in range(1, 7):
            env, _, _ = start(level, language=language, max_turns=100)
            left = env.oracle().steps_left
            action = env.inject(error, random.Random(0))
            messages, _, terminated, _, info = env.step(action)
            assert info["label"] is not Label.OK
            assert info["first_error"]
            assert not terminated
            assert messages[-1].content.startswith(("error: ", "错误："))
            assert info["steps_left"] == left
            assert play(env, info["steps_left"]).success

    def test_an_unknown_error_is_refused(self):
        with pytest.raises(ValueError, match="unknown error 'fire'"):
            start()[0].inject("fire", random.Random(0))


@pytest.mark.parametrize("level", [level.index for level in LEVELS])
def test_the_expert_says_only_names_titles_and_numbers_that_were_shown(level):
    for task in range(15):
        env, messages, _ = start(level, task)
        shown = [message.content for message in messages]
        while not env.finished:
            action = env.oracle().action
            name, arguments = action.tool_calls[0].name, action.tool_calls[0].arguments
            seen = "\n".join(shown)
            if name == "search":
                assert lexicon.names_in(arguments["query"]) <= lexicon.names_in(seen)
            elif name == "open":
                assert arguments["page"] in seen.split("\n")
            elif name == "calculator":
                numbers = {n for text in seen.split() for n in numbers_in(text.rstrip(".,?"))}
                assert set(numbers_in(arguments["expression"])) <= numbers | CONSTANTS
            else:
                assert display(arguments["answer"]) in seen.replace(".\n", "\n").split()
            shown += [message.content for message in env.step(action)[0]]
        assert env.success
