"""Values that differ from run to run, paired: what the capture calls A, our broker calls B.

Nothing here is ignored. The first sight of a value learns the pair, every later sight must agree,
and a request that refers to a captured value is rewritten to ours. Commit log positions, times of
storing and client ports are learned; addresses are known from the start; queue offsets are equal,
except in topics the table calls shared, whose distance is learned once per queue.
"""

import re
import struct
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["Translation", "join_offset_id", "split_offset_id"]

CAPTURED_BROKER = "127.0.0.1:41011"
CAPTURED_NAME_SERVER = "127.0.0.1:41001"
UNIQ_KEY = re.compile(r"[0-9A-F]{32}")
OFFSET_ID = re.compile(r"[0-9A-F]{32}")


@dataclass
class Translation:
    """The pairs of one scenario."""

    broker: str
    name_server: str
    is_shared: Callable[[str], bool]
    started_ms: int
    now_ms: Callable[[], int]
    physical: dict[int, int] = field(default_factory=dict)
    physical_back: dict[int, int] = field(default_factory=dict)
    times: dict[int, set[int]] = field(default_factory=dict)
    uniq_keys: dict[str, str] = field(default_factory=dict)
    store_times: dict[int, int] = field(default_factory=dict)
    ports: dict[str, str] = field(default_factory=dict)
    distances: dict[tuple[str, int], int] = field(default_factory=dict)
    our_ports: set[str] = field(default_factory=set)

    # -- requests: captured to ours ----------------------------------------------------------

    def address(self, captured: str) -> str:
        """A text with every address of the captured servers replaced by ours."""
        return captured.replace(CAPTURED_BROKER, self.broker).replace(
            CAPTURED_NAME_SERVER, self.name_server
        )

    def to_physical(self, captured: str) -> str:
        """A commit log position in a request; unknown ones stay, they are meant to miss."""
        return str(self.physical.get(int(captured), int(captured)))

    def to_queue_offset(self, topic: str, queue_id: int, captured: str) -> str:
        """A queue offset in a request."""
        return str(int(captured) - self.distances.get((topic, queue_id), 0))

    def to_offset_id(self, captured: str) -> str:
        """An offset message id in a request, where the position is known."""
        if not OFFSET_ID.fullmatch(captured):
            return captured
        address, position = split_offset_id(captured)
        if address != CAPTURED_BROKER or (position and position not in self.physical):
            return captured
        # Every log begins at 0.
        return join_offset_id(self.broker, self.physical.get(position, position))

    # -- answers: do both name the same thing? -----------------------------------------------

    def same_physical(self, captured: str, ours: str) -> bool:
        """Positions in the two commit logs, one to one."""
        if not captured.lstrip("-").isdigit() or not ours.lstrip("-").isdigit():
            return captured == ours
        theirs, mine = int(captured), int(ours)
        if theirs <= 0 and theirs not in self.physical:
            return theirs == mine
        return (
            self.physical.setdefault(theirs, mine) == mine
            and self.physical_back.setdefault(mine, theirs) == theirs
        )

    def same_offset_id(self, captured: str, ours: str) -> bool:
        """One or several offset message ids: our address, a position that pairs."""
        left, right = captured.split(","), ours.split(",")
        return len(left) == len(right) and all(map(self._same_one_id, left, right))

    def _same_one_id(self, captured: str, ours: str) -> bool:
        if not OFFSET_ID.fullmatch(captured) or not OFFSET_ID.fullmatch(ours):
            return captured == ours
        (their_host, theirs), (our_host, mine) = split_offset_id(captured), split_offset_id(ours)
        if self.address(their_host) != our_host:
            return False
        return theirs == mine == 0 or self.same_physical(str(theirs), str(mine))

    def same_time(self, captured: str, ours: str) -> bool:
        """A time the servers made: within our run, and the same whenever the capture's is."""
        theirs, mine = int(captured), int(ours)
        if theirs <= 0:
            return theirs == mine
        if theirs in self.times:
            return mine in self.times[theirs]
        self.times[theirs] = {mine}
        return self.started_ms <= mine <= self.now_ms()

    def same_store_time(self, position: int, captured: int, ours: int) -> bool:
        """When the message at a position of ours was stored: never twice two answers.

        Several messages may share one captured millisecond, so that alone pairs nothing.
        """
        self.times.setdefault(captured, set()).add(ours)
        if self.store_times.setdefault(position, ours) != ours:
            return False
        return self.started_ms <= ours <= self.now_ms()

    def same_client(self, captured: str, ours: str) -> bool:
        """A client's address: the port must belong to one of our connections, one to one."""
        if captured not in self.ports:
            if ours not in self.our_ports or ours in self.ports.values():
                return False
            self.ports[captured] = ours
        return self.ports[captured] == ours

    def same_made_key(self, captured: str, ours: str) -> bool:
        """A UNIQ_KEY that each broker made for a message sent without one."""
        if not UNIQ_KEY.fullmatch(ours):
            return False
        return self.uniq_keys.setdefault(captured, ours) == ours

    def same_uniq_key(self, captured: str, ours: str) -> bool:
        """A UNIQ_KEY in a stored message: the client's own, or one known to be made."""
        return self.uniq_keys.get(captured, captured) == ours

    def same_queue_offset(self, topic: str, queue_id: int, captured: str, ours: str) -> bool:
        """A queue offset: equal, or at the learned distance in a shared topic."""
        if not captured.lstrip("-").isdigit() or not ours.lstrip("-").isdigit():
            return captured == ours
        distance = int(captured) - int(ours)
        known = self.distances.get((topic, queue_id))
        if known is None and (distance == 0 or self.is_shared(topic)):
            known = self.distances[topic, queue_id] = distance
        return known == distance


def split_offset_id(text: str) -> tuple[str, int]:
    """`host:port` and commit log position of an offset message id."""
    a, b, c, d, port, position = struct.unpack(">4BiQ", bytes.fromhex(text))
    return f"{a}.{b}.{c}.{d}:{port}", position


def join_offset_id(address: str, position: int) -> str:
    """The offset message id of a position at `host:port`."""
    host, port = address.split(":")
    return struct.pack(">4BiQ", *map(int, host.split(".")), int(port), position).hex().upper()
