"""The simulator's workers: `net.Workers` without threads.

Each piece of work runs a drawn time after its submission, and its result arrives a drawn time after
that, in another turn of the loop.  So what the program does in between is not part of the work: a
write that comes after a sync has begun is not synced by it.  The order of results differs between
seeds and is the same for one seed.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from cometmq.testing.loop import NodeCrashed

__all__ = ["SimWorkers"]

_T = TypeVar("_T")


@dataclass(slots=True)
class _Submission:
    work: Callable[[], Any]
    done: Callable[[Any], None] | None
    rest_s: float
    """From the end of the work to the arrival of its result."""
    timer: asyncio.TimerHandle | None = None
    result: Any = None
    is_worked: bool = False


class SimWorkers:
    """Runs each piece of work; results arrive `delay_ms_min` to `delay_ms_max` after submission."""

    def __init__(
        self, chance: random.Random, *, delay_ms_min: float = 0.05, delay_ms_max: float = 3.0
    ) -> None:
        self._chance = chance
        self.delay_ms_min = delay_ms_min
        self.delay_ms_max = delay_ms_max
        self._waiting: dict[int, _Submission] = {}
        self._count = 0

    def submit(
        self, work: Callable[[], _T], done: Callable[[_T | BaseException], None] | None = None
    ) -> None:
        """Run `work` later, then `done(result or exception)`."""
        loop = asyncio.get_running_loop()
        self._count += 1
        delay_s = self._chance.uniform(self.delay_ms_min, self.delay_ms_max) / 1000
        begin_s = delay_s * self._chance.random()
        submission = _Submission(work, done, delay_s - begin_s)
        self._waiting[self._count] = submission
        submission.timer = loop.call_later(begin_s, self._work, self._count)

    def shutdown(self) -> None:
        """Run all submitted work now."""
        for number, submission in list(self._waiting.items()):
            if submission.timer is not None:
                submission.timer.cancel()
            if not submission.is_worked:
                self._run(submission)
            self._arrive(number)

    def _work(self, number: int) -> None:
        submission = self._waiting.get(number)
        if submission is None:
            return
        self._run(submission)
        loop = asyncio.get_running_loop()
        submission.timer = loop.call_later(submission.rest_s, self._arrive, number)

    @staticmethod
    def _run(submission: _Submission) -> None:
        submission.is_worked = True
        try:
            submission.result = submission.work()
        except NodeCrashed:
            raise
        except BaseException as error:
            submission.result = error

    def _arrive(self, number: int) -> None:
        submission = self._waiting.pop(number, None)
        if submission is not None and submission.done is not None:
            submission.done(submission.result)
