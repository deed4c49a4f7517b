"""Trajectories come back from their file as they went in."""

from __future__ import annotations

import dataclasses
import json
import math

import numpy as np
import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from agentrl.observe.records import RecordError, read_records, summarise, write_records
from agentrl.types import (
    AssistantMessage,
    EpisodeSpec,
    Injection,
    Label,
    Message,
    Sample,
    ToolCall,
    Trajectory,
    Turn,
)
from envs.contract import ParseStatus

# any character at all, lone surrogates too: a model may write them
texts = st.text(st.characters(exclude_categories=()), max_size=20)
numbers = st.floats(allow_nan=False)
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | numbers | texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=6,
)
calls = st.builds(
    ToolCall,
    name=texts,
    arguments=st.none() | st.dictionaries(texts, json_values, max_size=3),
    status=st.sampled_from(ParseStatus),
    raw=texts,
)
call_tuples = st.lists(calls, max_size=2).map(tuple)
messages = st.builds(
    Message,
    role=st.sampled_from(["system", "user", "assistant", "tool"]),
    content=texts,
    tool_calls=call_tuples,
    name=st.none() | texts,
)
message_tuples = st.lists(messages, max_size=2).map(tuple)
small = st.integers(0, 10**6)
turns = st.builds(
    Turn,
    index=small,
    sample=small,
    start=small,
    end=small,
    author=st.sampled_from(["student", "teacher", "expert", "injected"]),
    versions=st.tuples(small, small),
    action=st.builds(AssistantMessage, content=texts, tool_calls=call_tuples, reasoning=texts, truncated=st.booleans()),
    text=texts,
    finish=st.sampled_from(["stop", "length"]),
    observation=message_tuples,
    reward=numbers,
    reward_parts=st.dictionaries(texts, numbers, max_size=3),
    label=st.sampled_from(Label),
    first_error=st.booleans(),
    steps_left=small,
    state_hash=texts,
)


@st.composite
def samples(draw) -> Sample:
    n = draw(st.integers(0, 12))

    def array(dtype, elements=None):
        return draw(npst.arrays(dtype, n, elements=elements))

    return Sample(array(np.int32), array(np.int16), array(np.float32), array(np.bool_))


trajectories = st.builds(
    Trajectory,
    spec=st.builds(
        EpisodeSpec,
        episode_id=texts,
        env=texts,
        level=small,
        task=small,
        seed=st.integers(0, 2**63 - 1),
        split=st.sampled_from(["train", "heldout"]),
        language=st.sampled_from(["en", "zh"]),
        attempt=small,
        temperature=numbers,
        max_turns=st.none() | small,
        inject=st.none() | st.builds(Injection, error=texts, turn=small),
    ),
    opening=message_tuples,
    tools=st.lists(st.dictionaries(texts, json_values, max_size=2), max_size=2),
    samples=st.lists(samples(), max_size=2),
    turns=st.lists(turns, max_size=2),
    terminated=st.booleans(),
    truncated=st.booleans(),
    success=st.booleans(),
    signature=texts,
    oracle_turns=small,
    wall_s=numbers,
    failure=st.none() | texts,
    guidance=st.just([]),
)


def assert_same(a: Trajectory, b: Trajectory) -> None:
    for field in dataclasses.fields(Trajectory):
        if field.name != "samples":
            assert getattr(a, field.name) == getattr(b, field.name), field.name
    assert len(a.samples) == len(b.samples)
    for x, y in zip(a.samples, b.samples, strict=True):
        for name in Sample.__slots__:
            left, right = getattr(x, name), getattr(y, name)
            assert left.dtype == right.dtype, name
            np.testing.assert_array_equal(left, right, err_msg=name)


@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)
@given(played=st.lists(trajectories, max_size=3))
def test_whatever_was_played_comes_back_to_the_bit(tmp_path, played):
    path = tmp_path / "x.jsonl.zst"
    write_records(path, played)
    back = [record.trajectory for record in read_records(path)]
    assert len(back) == len(played)
    for a, b in zip(played, back, strict=True):
        assert_same(a, b)


def test_guidance_comes_back_as_its_summary(tmp_path, play):
    path = tmp_path / "x.jsonl.zst"
    write_records(path, [play()])
    (record,) = read_records(path)
    first, second = record.summaries
    # log p = -.5, -.25, -.125 against log q = log .5 three times
    assert first.kl_sampled == pytest.approx(-0.875 / 3 + math.log(2), abs=1e-6)
    assert first.support_mass == pytest.approx(0.75, abs=1e-6)
    assert first.value == 0.75
    assert second is None
    assert record.trajectory.guidance == []


def test_a_token_outside_of_the_support_leaves_no_kl(play):
    trajectory = play()
    trajectory.guidance[0].support_ids_nk[0] = [8, 9]
    assert summarise(trajectory, trajectory.guidance[0]).kl_sampled is None


def test_guidance_of_another_length_than_its_turn_is_an_error(play):
    trajectory = play()
    trajectory.guidance[0].turn = 1
    with pytest.raises(ValueError, match="episode 00000-000, turn 1: 2 tokens, but guidance for 3"):
        summarise(trajectory, trajectory.guidance[0])


def test_each_line_says_its_schema_and_is_readable_chinese(tmp_path, play):
    path = tmp_path / "x.jsonl.zst"
    write_records(path, [play(), play()])
    lines = zstandard.ZstdDecompressor().decompress(path.read_bytes()).decode().splitlines()
    assert [json.loads(line)["schema"] for line in lines] == [1, 1]
    assert "谢谢" in lines[0]


def test_another_schema_is_refused(tmp_path):
    path = tmp_path / "x.jsonl.zst"
    path.write_bytes(zstandard.compress(b'{"schema": 99}\n'))
    with pytest.raises(RecordError, match="line 1: schema 99, but this version reads schema 1"):
        list(read_records(path))


@pytest.mark.parametrize("damage", [lambda data: data[:-20], lambda data: b"not zstd at all" + data])
def test_a_damaged_file_is_refused_by_name(tmp_path, play, damage):
    path = tmp_path / "x.jsonl.zst"
    write_records(path, [play(f"{i}", say=f"{i}" * 50) for i in range(20)])
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(RecordError, match=r"x\.jsonl\.zst is not a whole trajectory file"):
        list(read_records(path))


def test_a_failed_write_leaves_the_old_file(tmp_path, play):
    path = tmp_path / "x.jsonl.zst"
    write_records(path, [play("old")])
    broken = play("new")
    broken.tools = [{"not": object()}]
    with pytest.raises(TypeError):
        write_records(path, [broken])
    assert [record.trajectory.spec.episode_id for record in read_records(path)] == ["old"]
