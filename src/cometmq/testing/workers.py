"""The simulator's workers: `net.Workers` without threads.

Each piece of work runs a drawn time after its submission, so the order of results differs between
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
    timer: asyncio.TimerHandle | None = None


class SimWorkers:
    """Runs each piece of work at once, `delay_ms_min` to `delay_ms_max` after its submission."""

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
        submission = _Submission(work, done)
        self._waiting[self._count] = submission
        delay_s = self._chance.uniform(self.delay_ms_min, self.delay_ms_max) / 1000
        submission.timer = loop.call_later(delay_s, self._run, self._count)

    def shutdown(self) -> None:
        """Run all submitted work now."""
        for number, submission in list(self._waiting.items()):
            if submission.timer is not None:
                submission.timer.cancel()
            self._run(number)

    def _run(self, number: int) -> None:
        submission = self._waiting.pop(number, None)
        if submission is None:
            return
        result: Any
        try:
            result = submission.work()
        except NodeCrashed:
            raise
        except BaseException as error:
            result = error
        if submission.done is not None:
            submission.done(result)
