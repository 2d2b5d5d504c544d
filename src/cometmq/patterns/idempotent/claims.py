"""What a store of claims answers, and the interface that `idempotent` uses.

A claim belongs to a group and a key.  It is *processing*, with a token of the call that has it and
a time at which it expires, or *done*.

    absent --claim--> processing --finish--> done --clean--> absent
                        |      ^
      absent <--release-+      +--take over, once it has expired or its owner is gone
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from cometmq.patterns.base.metrics import gauges

__all__ = ["Busy", "Claim", "ClaimStore", "Claimed", "ClaimsStatus", "Handled"]


@dataclass(frozen=True, slots=True)
class Claimed:
    """The key is ours; ``steps`` are the values of the steps that an earlier try has done."""

    steps: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Handled:
    """The key was handled before."""


@dataclass(frozen=True, slots=True)
class Busy:
    """Another call handles the key until ``expires_ms``."""

    owner: str
    expires_ms: int


Claim = Claimed | Handled | Busy


@dataclass(frozen=True, slots=True)
class ClaimsStatus:
    """What a store of claims has; the age is in milliseconds."""

    processing: int
    expired: int
    """Claims whose owner has not ended them in time: it died, or its handler takes too long.

    Redis forgets them, so they are none there.
    """
    done: int
    oldest_expired_ms: int
    """How long ago the first of them expired; 0 without one."""

    def figures(self) -> dict[str, float]:
        """The figures by the names of their metrics."""
        return {
            "processing": self.processing,
            "expired": self.expired,
            "done": self.done,
            "oldest_expired_seconds": self.oldest_expired_ms / 1000,
        }

    def metrics(self) -> str:
        """The figures in the text format of Prometheus."""
        return gauges("claims", self.figures())


class ClaimStore(Protocol):
    """A table of claims.  Each method runs at once, or returns a coroutine if ``is_async``."""

    is_async: bool

    def claim(
        self,
        group: str,
        keys: Sequence[str],
        token: str,
        owner: str,
        now_ms: int,
        expires_ms: int,
        alive: Collection[str] | None,
    ) -> Any:
        """Try to get each key: a list of `Claim`, in the order of the keys.

        ``alive`` are the owners whose claims count; None: every owner's.
        """
        ...

    def finish(self, group: str, keys: Sequence[str], now_ms: int, keep_until_ms: int) -> Any:
        """Mark keys as done."""
        ...

    def release(self, group: str, keys: Sequence[str], token: str) -> Any:
        """End claims that have this token, so that the next call may have the keys at once."""
        ...

    def save_step(self, group: str, key: str, token: str, name: str, value: str) -> Any:
        """Store the value of a step, as JSON, with a claim."""
        ...

    def clean(self, now_ms: int) -> Any:
        """Delete done keys whose time is over: how many."""
        ...
