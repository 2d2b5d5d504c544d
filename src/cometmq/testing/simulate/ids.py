"""Random ids of a simulation, from its seed: tables of the patterns are read by them."""

from __future__ import annotations

import random
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

__all__ = ["seeded_ids"]


@contextmanager
def seeded_ids(seed: int) -> Iterator[None]:
    """Let `uuid.uuid4` draw from the seed while the block runs."""
    chance = random.Random(f"{seed}/ids")

    def draw() -> uuid.UUID:
        return uuid.UUID(int=chance.getrandbits(128), version=4)

    with mock.patch.object(uuid, "uuid4", draw):
        yield
