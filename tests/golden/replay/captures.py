"""Reads captures as scenarios: lines in time order, each answer paired with its request.

Files are JSON lines, plain or compressed with xz, below `tests/golden/wire/<set>/`.
"""

import functools
import json
import lzma
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.golden.replay.frames import Frame, decode_frame

__all__ = ["Line", "Scenario", "load_scenario", "scenario_names"]

WIRE = Path(__file__).parents[1] / "wire"
BORN = re.compile(rb'"(?:g|bornTimestamp)":"(\d{13})"')


@dataclass
class Line:
    """One frame of a capture. `number` counts from 1, as the captures' own page does."""

    number: int
    at_ms: float
    connection: int
    peer: str
    from_client: bool
    frame: Frame
    raw: bytes
    request: "Line | None" = None
    answer: "Line | None" = None

    @property
    def code(self) -> int:
        """Return the request code; an answer has that of its request."""
        return self.frame.code if self.request is None else self.request.frame.code

    @property
    def is_request(self) -> bool:
        """Return whether this frame is a request."""
        return not self.frame.is_response


@dataclass
class Scenario:
    """One capture file."""

    name: str
    lines: list[Line]
    epoch_ms: int
    """The wall clock at the file's time zero, from the first birth time of a message."""

    @property
    def set_name(self) -> str:
        """Return the capture's folder, which names the client."""
        return self.name.split("/")[0]


def _paths() -> dict[str, Path]:
    found = {}
    for path in sorted(WIRE.rglob("*.jsonl*")):
        found[path.relative_to(WIRE).as_posix().split(".jsonl")[0]] = path
    return found


def scenario_names(set_name: str) -> list[str]:
    """`set/file` of every capture of a set."""
    return [name for name in _paths() if name.startswith(set_name + "/")]


def _text_lines(path: Path) -> Iterator[str]:
    data = path.read_bytes()
    if path.suffix == ".xz":
        data = lzma.decompress(data)
    yield from data.decode("utf-8").splitlines()


def load_scenario(name: str) -> Scenario:
    """Read one capture and pair its frames."""
    lines = []
    open_requests: dict[tuple[int, bool, int], Line] = {}
    for number, text in enumerate(_text_lines(_paths()[name]), 1):
        record = json.loads(text)
        raw = bytes.fromhex(record["hex"])
        line = Line(
            number,
            record["t"],
            record["conn"],
            record["peer"],
            record["from"] == "client",
            decode_frame(raw),
            raw,
        )
        assert line.is_request == (record["dir"] == "request"), (name, number)
        if line.is_request:
            open_requests[line.connection, line.from_client, line.frame.opaque] = line
        else:
            asked = open_requests.pop((line.connection, not line.from_client, line.frame.opaque))
            assert asked.frame.code & 0xFFFF == record["req"] & 0xFFFF, (name, number)
            line.request, asked.answer = asked, line
        lines.append(line)
    epoch_ms = _epoch_ms(lines) or _set_epoch_ms(name)
    return Scenario(name, _as_processed(lines), epoch_ms)


def _as_processed(lines: list[Line]) -> list[Line]:
    """Sort the lines into the order in which the captured servers handled them.

    Java serves requests of different kinds in different threads: of two requests that wait on
    one connection, the one answered first was worked on first. So a request moves behind those
    that overtook it, unless the servers showed in between that they had begun it (a call, or a
    held pull woken up).
    """
    order = list(lines)
    for line in lines:
        if line.answer is None or not line.from_client or not line.is_request or _is_held(line):
            continue
        here = order.index(line)
        behind = here
        for index in range(here + 1, order.index(line.answer)):
            other = order[index]
            if not other.from_client and (other.request is None or _is_held(other.request)):
                break
            overtook = other.request is not None and order.index(other.request) > here
            if overtook and other.connection == line.connection:
                behind = index
        order.insert(behind, order.pop(here))
    return order


def _is_held(line: Line) -> bool:
    """Return whether this is a pull that the server may have held."""
    if line.frame.code not in {11, 361} or line.answer is None:
        return False
    return line.answer.frame.code in {0, 19, 20, 21}


def _epoch_ms(lines: list[Line]) -> int:
    for line in lines:
        born = line.frame.ext.get("g") or line.frame.ext.get("bornTimestamp")
        if line.is_request and line.from_client and born:
            return int(born) - int(line.at_ms)
    return 0


@functools.cache
def _set_epoch_ms(name: str) -> int:
    """Set the clock of a file without sends to that of the next file with sends."""
    for path in _paths().values():
        for text in _text_lines(path):
            record = json.loads(text)
            born = BORN.search(bytes.fromhex(record["hex"]))
            if born:
                return int(born[1]) - int(record["t"])
    raise AssertionError(f"no capture near {name} carries a birth time")
