"""Unpacks the captured frames once for a run."""

import functools
import json
import lzma
from pathlib import Path
from typing import NamedTuple

__all__ = [
    "FILES",
    "CapturedFrame",
    "Transfer",
    "load_autoswitch",
    "load_frames",
    "load_transfers",
]

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*/*.jsonl.xz"))


class CapturedFrame(NamedTuple):
    """One frame; the ``request_code`` of a response is that of its request."""

    where: str
    is_request: bool
    is_from_client: bool
    code: int
    request_code: int
    opaque: int
    frame: bytes


class Transfer(NamedTuple):
    """One transfer of a replication stream."""

    where: str
    is_from_master: bool
    offset: int
    data: bytes


def _lines(path: Path) -> list[tuple[str, dict[str, object]]]:
    name = f"{path.parent.name}/{path.name.removesuffix('.jsonl.xz')}"
    text = lzma.decompress(path.read_bytes()).decode()
    return [
        (f"{name}:{number}", json.loads(line))
        for number, line in enumerate(text.splitlines(), start=1)
    ]


@functools.cache
def load_frames() -> list[CapturedFrame]:
    """Return every captured frame in the order of files and lines."""
    frames = []
    for path in FILES:
        if "ha-stream" in path.name or "autoswitch" in path.name:
            continue
        for where, line in _lines(path):
            is_request = line["dir"] == "request"
            code = int(str(line["code"]))
            frames.append(
                CapturedFrame(
                    where,
                    is_request,
                    line["from"] == "client",
                    code,
                    code if is_request else int(str(line["req"])),
                    int(str(line["opaque"])),
                    bytes.fromhex(str(line["hex"])),
                )
            )
    return frames


@functools.cache
def load_transfers() -> list[Transfer]:
    """Return every transfer of the replication streams."""
    return [
        Transfer(
            where,
            line["from"] == "server",
            int(str(line["offset"])),
            bytes.fromhex(str(line["hex"])),
        )
        for path in FILES
        if "ha-stream" in path.name
        for where, line in _lines(path)
    ]


@functools.cache
def load_autoswitch() -> list[tuple[str, bool, bytes]]:
    """Return every frame of the AutoSwitch streams: where it is, from the master, its bytes."""
    return [
        (where, line["from"] == "server", bytes.fromhex(str(line["hex"])))
        for path in FILES
        if "autoswitch" in path.name
        for where, line in _lines(path)
    ]
