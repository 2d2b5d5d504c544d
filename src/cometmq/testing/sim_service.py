"""A service beside the simulated machines: calls to it take time, and its connections break.

No machine's crash touches the service itself.  A caller may crash, or lose its connection, before
the service has done anything or after it has done everything; then it does not know the outcome.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.testing.simulation import World

__all__ = ["DELAY_S_MAX", "FAULT_CHANCE", "SimService"]

FAULT_CHANCE: Final = 0.06
DELAY_S_MAX: Final = 0.03


class SimService:
    """The base of `SimDatabase` and `SimRedis`.

    Args:
        world: of the simulation.
        name: of the service, unique in the world; its chance and its records in the trace have it.
        fault_chance: of each journey to the service or back: that the connection breaks.
        delay_s_max: the longest such journey, in virtual seconds.
        is_calm: whether connections hold now; None: they may break at any time.
        on_break: called when one breaks.
    """

    def __init__(
        self,
        world: World,
        name: str,
        *,
        fault_chance: float = FAULT_CHANCE,
        delay_s_max: float = DELAY_S_MAX,
        is_calm: Callable[[], bool] | None = None,
        on_break: Callable[[], None] | None = None,
    ) -> None:
        self.world = world
        self.name = name
        self.fault_chance = fault_chance
        self.delay_s_max = delay_s_max
        self._is_calm = is_calm
        self._on_break = on_break
        self.chance = random.Random(f"{world.seed}/{name}")

    def delay_s(self) -> float:
        """Draw how long a journey takes."""
        return self.chance.uniform(0, self.delay_s_max)

    def breaks(self, when: str) -> bool:
        """Draw whether the connection breaks now, and record it."""
        if self._is_calm is not None and self._is_calm():
            return False
        if self.chance.random() >= self.fault_chance:
            return False
        self.world.record(self.name, f"breaks {when}")
        if self._on_break is not None:
            self._on_break()
        return True
