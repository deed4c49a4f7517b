"""One thread that owns a model, and packs whatever waits for it into one forward pass after another.

Requests of many callers share passes without a timer: while a pass runs, others queue, and the next pass takes the
oldest of them and those nearest to it in length, until `batch_tokens` (padding included) are full.  Nobody starves and
little is padded.  Urgent calls (health, sampling) run before the next pass.
"""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from agentrl.teacher.scorer import ItemScores, ScoreItem


class TokenBatcher:
    """`score_pack` scores the items of one pass; it is only ever called from the one thread."""

    def __init__(self, score_pack: Callable[[list[ScoreItem]], list[ItemScores]], batch_tokens: int) -> None:
        self._score_pack = score_pack
        self._batch_tokens = batch_tokens
        self._inbox: queue.SimpleQueue[tuple[Any, Future] | None] = queue.SimpleQueue()
        self._closed = False
        self.last_success_s = 0.0
        """time.monotonic() of the last pass or call that ended well"""
        self._thread = threading.Thread(target=self._run, name="teacher-model", daemon=True)
        self._thread.start()

    async def score(self, items: list[ScoreItem]) -> list[ItemScores]:
        """Scores in the order of `items`.  Raises what the pass raised."""
        futures = [self._put(item) for item in items]
        return list(await asyncio.gather(*(asyncio.wrap_future(future) for future in futures)))

    async def call(self, function: Callable[[], Any]) -> Any:
        """Run `function` on the model's thread, before the passes that wait."""
        return await asyncio.wrap_future(self._put(function))

    def close(self, timeout_s: float = 60.0) -> None:
        """Stop after the pass in flight; requests that still wait fail."""
        self._closed = True
        self._inbox.put(None)
        self._thread.join(timeout_s)
        if self._thread.is_alive():
            raise TimeoutError(f"the teacher's model thread did not end its pass within {timeout_s} s")

    def _put(self, work: ScoreItem | Callable[[], Any]) -> Future:
        if self._closed:
            raise RuntimeError("the teacher's model has been closed")
        future: Future = Future()
        self._inbox.put((work, future))
        return future

    def _run(self) -> None:
        waiting: list[tuple[ScoreItem, Future]] = []
        while True:
            entries = [] if waiting else [self._inbox.get()]
            while not self._inbox.empty():
                entries.append(self._inbox.get())
            for entry in entries:
                if entry is None:
                    for _, future in waiting:
                        future.cancel()
                    return
                if isinstance(entry[0], ScoreItem):
                    waiting.append(entry)
                elif entry[1].set_running_or_notify_cancel():
                    self._finish([entry[1]], lambda call=entry[0]: [call()])
            if waiting:
                pack = take_pack(waiting, self._batch_tokens)
                # A caller that hung up has cancelled its futures: its items cost no pass.
                pack = [(item, future) for item, future in pack if future.set_running_or_notify_cancel()]
                if pack:
                    self._finish([f for _, f in pack], lambda pack=pack: self._score_pack([i for i, _ in pack]))

    def _finish(self, futures: list[Future], work: Callable[[], list]) -> None:
        try:
            results = work()
        except BaseException as error:  # noqa: BLE001  it rises in the callers, and the thread must outlive it
            for future in futures:
                future.set_exception(error)
            return
        self.last_success_s = time.monotonic()
        for future, result in zip(futures, results, strict=True):
            future.set_result(result)


def take_pack(waiting: list[tuple[ScoreItem, Future]], batch_tokens: int) -> list[tuple[ScoreItem, Future]]:
    """Take the oldest item off `waiting`, and with it those nearest in length, up to `batch_tokens` padded tokens.

    An item longer than `batch_tokens` goes alone.
    """
    oldest = len(waiting[0][0].token_ids_T)
    nearest = sorted(range(len(waiting)), key=lambda i: abs(len(waiting[i][0].token_ids_T) - oldest))
    nearest.remove(0)
    taken, longest = [0], oldest
    for i in nearest:
        longer = max(longest, len(waiting[i][0].token_ids_T))
        if longer * (len(taken) + 1) > batch_tokens:
            break
        taken.append(i)
        longest = longer
    pack = [waiting[i] for i in taken]
    chosen = set(taken)
    waiting[:] = [entry for i, entry in enumerate(waiting) if i not in chosen]
    return pack
