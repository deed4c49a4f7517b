"""The parts of the search-and-calculate environment by themselves: calculator, search, knowledge base, questions."""

import random
import time

import pytest

from envs.contract import call
from envs.search_calc_qa import SearchCalcQAEnv, lexicon, programs, texts
from envs.search_calc_qa.calculator import CalculatorError, calculate, display
from envs.search_calc_qa.index import tokenize
from envs.search_calc_qa.knowledge import LAYOUTS, layout_of
from envs.search_calc_qa.levels import LEVELS


def start(level, task=0, language="en", **options):
    env = SearchCalcQAEnv(level=level, language=language, **options)
    messages, _ = env.reset(seed=0, options={"task": task})
    return env, messages


class TestCalculator:
    @pytest.mark.parametrize(
        ("expression", "shown"),
        [
            ("12 - 7", "5"),
            ("5-12", "-7"),
            ("(12 + 5 + 7) / 3", "8"),
            ("42 / 36 * 100", "116.6667"),
            ("12 ÷ 5", "2.4"),
            ("（3＋4）× 2", "14"),
            ("10 / 4", "2.5"),
            ("1000 * 1000", "1000000"),
        ],
    )
    def test_it_works_out_numbers_and_brackets(self, expression, shown):
        assert display(calculate(expression)) == shown

    @pytest.mark.parametrize(
        ("expression", "fault"),
        [
            ("9**9**9", "not_allowed"),
            ("7 // 2", "not_allowed"),
            ("1" * 10_000, "too_long"),
            ("(" * 10_000, "too_long"),
            ("9" * 99, "too_big"),
            ("1e1000000000", "not_a_number"),
            ("Oak Town + 3", "not_a_number"),
            ("橡木镇 + 3", "not_a_number"),
            ("(1).__class__", "not_a_number"),
            ("1 .real", "not_a_number"),
            ("__import__('os').system('true')", "not_a_number"),
            ("'a' * 9", "not_a_number"),
            ("1_000", "not_a_number"),
            ("1 << 9", "not_a_number"),
            ("", "not_a_number"),
            ("٣ + 1", "not_a_number"),
            ("\ud800", "not_a_number"),
            ("3(4)", "not_an_expression"),
            ("(1 + 2", "not_an_expression"),
            ("1 2", "not_an_expression"),
            ("()1", "not_an_expression"),
            ("3 / (2 - 2)", "division_by_zero"),
            ("0 / 0", "division_by_zero"),
        ],
    )
    def test_it_says_why_it_cannot_and_never_hangs(self, expression, fault):
        started = time.perf_counter()
        with pytest.raises(CalculatorError) as caught:
            calculate(expression)
        assert caught.value.fault == fault
        assert fault in texts.STATED
        assert time.perf_counter() - started < 1

    def test_no_text_of_its_alphabet_raises_anything_else(self):
        rng = random.Random(0)
        for _ in range(3_000):
            text = "".join(rng.choices("0123456789.+-*/() ", k=rng.randint(0, 30)))
            try:
                value = calculate(text)
            except CalculatorError:
                continue
            assert abs(value) <= 1e12


class TestSearch:
    def test_chinese_is_cut_into_pairs_and_english_into_words(self):
        assert tokenize("Oak Town 2019 has 12") == ["oak", "town", "2019", "has"]
        assert tokenize("橡木镇2019，湖") == ["橡木", "木镇", "2019", "湖"]

    @pytest.mark.parametrize("level", [level.index for level in LEVELS])
    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_a_name_finds_its_pages_on_every_layout(self, level, language):
        for number in range(LAYOUTS):
            layout, index = layout_of(level, number), texts.search_index(level, number, language)
            for subject in range(len(layout.subjects)):
                found = index.search(texts.name(layout, subject, language), LEVELS[level - 1].settings["results"])
                assert subject in found or layout.subjects[subject].kind == "story"

    @pytest.mark.parametrize("level", [level.index for level in LEVELS])
    @pytest.mark.parametrize("language", ["en", "zh"])
    def test_no_two_pages_of_a_layout_share_a_title(self, level, language):
        for number in range(LAYOUTS):
            pages = layout_of(level, number).pages
            assert len(texts.pages_by_title(level, number, language)) == len(pages)

    def test_a_chinese_sentence_finds_the_page_of_the_name_in_it(self):
        env, _ = start(2, language="zh")
        name = texts.name(env.layout, env.needed[0], "zh")
        assert name in env.step(call("search", query=f"请问{name}在哪里"))[0][0].content

    def test_every_page_on_a_subject_is_listed_with_it(self):
        env, _ = start(4)
        for subject in env.needed:
            listed = env.step(call("search", query=texts.name(env.layout, subject, "en")))[0][0].content.split("\n")
            titles = {texts.title(env.layout, page, "en") for page in env.layout.subjects[subject].pages}
            assert titles <= set(listed)

    def test_unknown_words_are_on_no_page(self):
        for level in LEVELS:
            for word in lexicon.UNKNOWN_WORDS:
                for number in range(0, LAYOUTS, 16):
                    assert not texts.search_index(level.index, number, "en").search(word.en, 3)
                    assert not texts.search_index(level.index, number, "zh").search(word.zh, 3)


class TestWorld:
    def test_no_name_is_part_of_another(self):
        names = [*lexicon.TOWN_NAMES, *lexicon.PERSON_NAMES]
        for name in names:
            assert lexicon.names_in(name.en) == {name.en} == lexicon.names_in(name.zh)
        assert lexicon.names_in("Benjamin and the annals") == frozenset()

    def test_the_layout_tells_which_names_a_page_names(self):
        for level in LEVELS:
            layout = layout_of(level.index, 3)
            for page, told in enumerate(layout.pages):
                text = texts.title(layout, page, "en") + ". " + texts.page_text(layout, page, {}, "en")
                assert lexicon.names_in(text) == layout.names_on(page)
                assert lexicon.names_in(texts.title(layout, page, "zh")) == layout.names_in_titles(told.subject)

    @pytest.mark.parametrize("level", [4, 5, 6])
    def test_an_old_page_never_counts_the_same_as_the_latest(self, level):
        env, _ = start(level)
        for subject in env.layout.subjects:
            assert max(subject.pages, key=lambda page: env.layout.pages[page].year or 0) == subject.latest
            for attribute in env.layout.attributes[subject.kind]:
                counts = [env.task["numbers"][page][attribute] for page in subject.pages]
                assert len(set(counts)) == len(counts)

    @pytest.mark.parametrize(
        ("operation", "values", "factor", "answer"),
        [
            ("value", [7], 1, 7),
            ("difference", [9, 4], 1, 5),
            ("sum", [2, 3, 4], 1, 9),
            ("product", [6], 7, 42),
            ("average", [3, 4], 1, 3.5),
            ("percent", [3, 12], 1, 25),
        ],
    )
    def test_every_way_to_calculate_gives_the_answer(self, operation, values, factor, answer):
        assert programs.evaluate(operation, values, factor) == answer
        for expression in programs.expressions(operation, values, factor):
            assert calculate(expression) == pytest.approx(answer)

    @pytest.mark.parametrize("level", [level.index for level in LEVELS])
    def test_both_languages_ask_for_the_same_answer(self, level):
        for task in range(20):
            english, chinese = start(level, task)[0], start(level, task, "zh")[0]
            assert english.task == chinese.task
            assert english.messages[-1].content != chinese.messages[-1].content

    def test_questions_need_one_to_four_look_ups_and_early_dialogues_are_short(self):
        lookups = {level: {len(start(level, task)[0].needed) for task in range(60)} for level in range(1, 7)}
        assert lookups == {1: {1}, 2: {1, 2}, 3: {1, 2}, 4: {2, 3}, 5: {3, 4}, 6: {3, 4}}
        for level, characters in ((1, 400), (2, 700), (3, 900)):
            env, _ = start(level, compact_tools=True)
            while not env.success:
                env.step(env.oracle().action)
            words = [m.content + str([c.arguments for c in m.tool_calls]) for m in env.messages]
            assert sum(map(len, words)) < characters

    def test_the_question_of_a_chain_names_its_start_only(self):
        env, messages = start(2, 0)
        assert env.task["operation"] == "value"
        chain = env.task["chains"][0]
        assert lexicon.names_in(messages[-1].content) == {env.layout.subjects[chain[0]].name.en}
