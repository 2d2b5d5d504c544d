"""Pairs the values that differ from run to run: the capture's value and our broker's.

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
CAPTURED_ADDRESS = re.compile(
    rf"{re.escape(CAPTURED_BROKER)}(?!\d)|{re.escape(CAPTURED_NAME_SERVER)}(?!\d)"
)
UNIQ_KEY = re.compile(r"[0-9A-F]{32}")
OFFSET_ID = re.compile(r"[0-9A-F]{32}")


@dataclass
class Translation:
    """The pairs of values of one scenario."""

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
        """Replace every address of the captured servers in a text by ours.

        In one pass: the system may give our broker the port of the captured name server.
        """
        ours = {CAPTURED_BROKER: self.broker, CAPTURED_NAME_SERVER: self.name_server}
        return CAPTURED_ADDRESS.sub(lambda match: ours[match[0]], captured)

    def to_physical(self, captured: str) -> str:
        """Translate a commit log position in a request; a position without a pair stays."""
        return str(self.physical.get(int(captured), int(captured)))

    def to_queue_offset(self, topic: str, queue_id: int, captured: str) -> str:
        """Translate a queue offset in a request."""
        return str(int(captured) - self.distances.get((topic, queue_id), 0))

    def to_offset_id(self, captured: str) -> str:
        """Translate an offset message id in a request, if its position has a pair."""
        if not OFFSET_ID.fullmatch(captured):
            return captured
        address, position = split_offset_id(captured)
        if address != CAPTURED_BROKER or (position and position not in self.physical):
            return captured
        # Every log begins at 0.
        return join_offset_id(self.broker, self.physical.get(position, position))

    # -- answers: do both name the same thing? -----------------------------------------------

    def same_physical(self, captured: str, ours: str) -> bool:
        """Pair two commit log positions, one to one."""
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
        """Compare one or several offset message ids: our address and a position with a pair."""
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
        """Compare a server time: ours is within the run and pairs with the captured one."""
        theirs, mine = int(captured), int(ours)
        if theirs <= 0:
            return theirs == mine
        if theirs in self.times:
            return mine in self.times[theirs]
        self.times[theirs] = {mine}
        return self.started_ms <= mine <= self.now_ms()

    def same_store_time(self, position: int, captured: int, ours: int) -> bool:
        """Check that all answers give the message at our position the same store time.

        Several messages may share one captured millisecond, so that alone pairs nothing.
        """
        self.times.setdefault(captured, set()).add(ours)
        if self.store_times.setdefault(position, ours) != ours:
            return False
        return self.started_ms <= ours <= self.now_ms()

    def same_client(self, captured: str, ours: str) -> bool:
        """Pair a client's address with that of one of our connections, one to one."""
        if captured not in self.ports:
            if ours not in self.our_ports or ours in self.ports.values():
                return False
            self.ports[captured] = ours
        return self.ports[captured] == ours

    def same_made_key(self, captured: str, ours: str) -> bool:
        """Pair the UNIQ_KEYs that the two brokers made for a message without one."""
        if not UNIQ_KEY.fullmatch(ours):
            return False
        return self.uniq_keys.setdefault(captured, ours) == ours

    def same_uniq_key(self, captured: str, ours: str) -> bool:
        """Compare a stored UNIQ_KEY: it is the client's own, or a broker made it."""
        return self.uniq_keys.get(captured, captured) == ours

    def same_queue_offset(self, topic: str, queue_id: int, captured: str, ours: str) -> bool:
        """Compare a queue offset: equal, or at the learned distance in a shared topic."""
        if not captured.lstrip("-").isdigit() or not ours.lstrip("-").isdigit():
            return captured == ours
        distance = int(captured) - int(ours)
        known = self.distances.get((topic, queue_id))
        if known is None and (distance == 0 or self.is_shared(topic)):
            known = self.distances[topic, queue_id] = distance
        return known == distance


def split_offset_id(text: str) -> tuple[str, int]:
    """Return `host:port` and the commit log position in an offset message id."""
    a, b, c, d, port, position = struct.unpack(">4BiQ", bytes.fromhex(text))
    return f"{a}.{b}.{c}.{d}:{port}", position


def join_offset_id(address: str, position: int) -> str:
    """Return the offset message id of a position at `host:port`."""
    host, port = address.split(":")
    return struct.pack(">4BiQ", *map(int, host.split(".")), int(port), position).hex().upper()
