"""Worker threads of the simulator: one thing at a time, at a virtual time drawn from the seed.

Job: implement `net.Workers` without threads.  Work submitted first starts first, but takes a
drawn time, so results come back in an order that differs between seeds and never within one.
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
class _Job:
    work: Callable[[], Any]
    done: Callable[[Any], None] | None
    timer: asyncio.TimerHandle | None = None


class SimWorkers:
    """Runs each piece of work in one go, `delay_ms_min` to `delay_ms_max` after its submission."""

    def __init__(
        self, chance: random.Random, *, delay_ms_min: float = 0.05, delay_ms_max: float = 3.0
    ) -> None:
        self._chance = chance
        self.delay_ms_min = delay_ms_min
        self.delay_ms_max = delay_ms_max
        self._waiting: dict[int, _Job] = {}
        self._count = 0

    def submit(
        self, work: Callable[[], _T], done: Callable[[_T | BaseException], None] | None = None
    ) -> None:
        """Run `work` later, then `done(result or exception)`."""
        loop = asyncio.get_running_loop()
        self._count += 1
        job = _Job(work, done)
        self._waiting[self._count] = job
        delay_s = self._chance.uniform(self.delay_ms_min, self.delay_ms_max) / 1000
        job.timer = loop.call_later(delay_s, self._run, self._count)

    def shutdown(self) -> None:
        """Run what was submitted, now."""
        for number, job in list(self._waiting.items()):
            if job.timer is not None:
                job.timer.cancel()
            self._run(number)

    def _run(self, number: int) -> None:
        job = self._waiting.pop(number, None)
        if job is None:
            return
        result: Any
        try:
            result = job.work()
        except NodeCrashed:
            raise
        except BaseException as error:
            result = error
        if job.done is not None:
            job.done(result)
