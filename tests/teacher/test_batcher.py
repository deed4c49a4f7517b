"""Requests share passes, in order of age, and a pass that fails fails its own requests only."""

from __future__ import annotations

import asyncio
import threading
from concurrent.futures import Future

import numpy as np
import pytest

from agentrl.teacher.batcher import TokenBatcher, take_pack
from agentrl.teacher.scorer import ItemScores, ScoreItem


def item(length: int) -> ScoreItem:
    return ScoreItem(np.zeros(length, np.int32), np.array([[1, 2]], np.int32), None, 1, 1.0)


def packs(lengths: list[int], batch_tokens: int) -> list[list[int]]:
    waiting = [(item(length), Future()) for length in lengths]
    found = []
    while waiting:
        found.append([len(i.token_ids_T) for i, _ in take_pack(waiting, batch_tokens)])
    return found


def test_the_oldest_goes_first_with_those_nearest_in_length():
    assert packs([10, 100, 12, 90, 9], 40) == [[10, 9, 12], [100], [90]]


def test_padding_counts():
    assert packs([10, 20, 20], 40) == [[10, 20], [20]]


def test_an_item_longer_than_a_batch_goes_alone():
    assert packs([500, 500, 3], 40) == [[500], [500], [3]]


def answers(items: list[ScoreItem]) -> list[ItemScores]:
    return [ItemScores(*(np.array([len(i.token_ids_T)]) for _ in range(3)), None) for i in items]


def test_requests_that_wait_during_a_pass_share_the_next_one_and_urgent_calls_go_before_it():
    order: list[object] = []
    started, go = threading.Event(), threading.Event()

    def score_pack(items):
        order.append([len(i.token_ids_T) for i in items])
        started.set()
        assert go.wait(10)
        return answers(items)

    async def play():
        batcher = TokenBatcher(score_pack, batch_tokens=100)
        first = asyncio.create_task(batcher.score([item(5)]))
        await asyncio.to_thread(started.wait, 10)
        others = [asyncio.create_task(batcher.score([item(n)])) for n in (6, 7)]
        urgent = asyncio.create_task(batcher.call(lambda: order.append("urgent")))
        await asyncio.sleep(0.01)
        go.set()
        await asyncio.gather(first, urgent, *others)
        batcher.close()

    asyncio.run(play())
    assert order == [[5], "urgent", [6, 7]]


def test_a_pass_that_fails_fails_its_requests_and_the_next_one_runs():
    def score_pack(items):
        if len(items[0].token_ids_T) == 13:
            raise MemoryError("no room")
        return answers(items)

    async def play():
        batcher = TokenBatcher(score_pack, batch_tokens=10)
        with pytest.raises(MemoryError, match="no room"):
            await batcher.score([item(13)])
        assert batcher.last_success_s == 0.0
        [after] = await batcher.score([item(4)])
        batcher.close()
        return after

    assert asyncio.run(play()).tail_logprobs_n.tolist() == [4]


def test_a_request_whose_caller_hung_up_costs_no_pass():
    seen: list[int] = []
    started, go = threading.Event(), threading.Event()

    def score_pack(items):
        seen.extend(len(i.token_ids_T) for i in items)
        started.set()
        assert go.wait(10)
        return answers(items)

    async def play():
        batcher = TokenBatcher(score_pack, batch_tokens=100)
        first = asyncio.create_task(batcher.score([item(5)]))
        await asyncio.to_thread(started.wait, 10)
        gone = asyncio.create_task(batcher.score([item(50)]))
        await asyncio.sleep(0.01)
        gone.cancel()
        await asyncio.gather(gone, return_exceptions=True)
        go.set()
        await first
        await batcher.score([item(7)])
        batcher.close()

    asyncio.run(play())
    assert seen == [5, 7]


def test_a_closed_batcher_refuses_work():
    batcher = TokenBatcher(answers, batch_tokens=10)
    batcher.close()
    with pytest.raises(RuntimeError, match="has been closed"):
        asyncio.run(batcher.score([item(2)]))
