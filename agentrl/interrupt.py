"""Ctrl-C at a place where nothing is lost.

The first SIGINT or SIGTERM interrupts at once what can be played again (rollouts, scoring, evaluations), and otherwise
waits for the end of what can't (an optimizer step).  A second one stops immediately.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM)


class Interrupted(BaseException):
    """Like KeyboardInterrupt, no error: nothing that handles errors may swallow it."""


class StopFlag:
    """A context manager that takes the signals over; outside of the main thread it leaves them alone."""

    def __init__(self) -> None:
        self._asked = False
        self._may_interrupt = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> StopFlag:
        self._before = self.take()
        return self

    def take(self) -> dict[int, Any]:
        """Take the signals over; the handlers that had them.  Again after Ray has started, which takes SIGTERM."""
        if threading.current_thread() is not threading.main_thread():
            return {}
        return {number: signal.signal(number, self._on_signal) for number in SIGNALS}

    def __exit__(self, *_: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    @contextmanager
    def may_interrupt(self) -> Iterator[None]:
        """A block that a signal leaves at once with Interrupted."""
        self.check()
        self._may_interrupt = True
        try:
            yield
        except Exception as error:
            # Raised inside of Ray's C++ calls, Interrupted comes out as a SystemError.
            if self._asked:
                raise Interrupted from error
            raise
        finally:
            self._may_interrupt = False
        self.check()

    def check(self) -> None:
        """Raise Interrupted if a signal has come."""
        if self._asked:
            raise Interrupted

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if self._asked:
            raise KeyboardInterrupt
        self._asked = True
        if self._may_interrupt:
            self._may_interrupt = False
            raise Interrupted
