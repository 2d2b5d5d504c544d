"""How much memory is left: of the machine, and of the container that the process runs in.

Linux alone says so.  Pages of files that can be dropped count as left: a broker's log fills the
rest of the memory with them, which is no trouble.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

__all__ = ["available_memory"]

_MEMORY: Final = Path("/proc/meminfo")
_GROUP: Final = Path("/sys/fs/cgroup")


def available_memory(machine: Path = _MEMORY, group: Path = _GROUP) -> int | None:
    """Return the smaller of both in bytes; None where the system does not say.

    Source of the names: the kernel's documentation of ``/proc/meminfo`` and of control groups,
    version 2.
    """
    found = [size for size in (_of_machine(machine), _of_group(group)) if size is not None]
    return min(found, default=None)


def _of_machine(path: Path) -> int | None:
    words = _numbers(path)
    kilobytes = words.get("MemAvailable:")
    return None if kilobytes is None else kilobytes * 1024


def _of_group(folder: Path) -> int | None:
    try:
        most = (folder / "memory.max").read_text()
        used = int((folder / "memory.current").read_text())
    except (OSError, ValueError):
        return None
    if not most.strip().isdecimal():
        return None
    pages = _numbers(folder / "memory.stat")
    droppable = pages.get("inactive_file", 0) + pages.get("active_file", 0)
    return max(0, int(most) - used + droppable)


def _numbers(path: Path) -> dict[str, int]:
    """Read lines of a name and a number."""
    try:
        text = path.read_text()
    except OSError:
        return {}
    lines = (line.split() for line in text.splitlines())
    return {words[0]: int(words[1]) for words in lines if len(words) > 1 and words[1].isdecimal()}
