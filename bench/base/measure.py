"""Costs and conditions of a run: /proc readings, pinning, the disk's fdatasync, percentiles.

On a system without /proc or sched_setaffinity the readings are None, and the report says so.
"""

from __future__ import annotations

import os
import platform
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from math import comb
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

__all__ = [
    "Conditions",
    "Latency",
    "MachineReading",
    "ProcessReading",
    "cores",
    "fdatasync_us",
    "file_system",
    "interval_of_median",
    "machine_conditions",
    "median_of",
    "on_core",
    "pin",
    "read_machine",
    "read_process",
    "shares_of_others",
]

PERCENTILES: Final = (50.0, 99.0, 99.9)
FDATASYNC_ROUNDS: Final = 60
KERNEL_THREADS: Final = 2
"""Process id of the parent of the kernel's threads."""


@dataclass(frozen=True, slots=True)
class Latency:
    """Latencies in microseconds: median, 99 %, 99.9 %, maximum, and the number of values."""

    p50_us: float
    p99_us: float
    p999_us: float
    max_us: float
    count: int

    @classmethod
    def of(cls, nanoseconds: npt.NDArray[np.int64]) -> Latency | None:
        """Percentiles of an array of durations, or None for an empty one."""
        if nanoseconds.size == 0:
            return None
        import numpy as np  # late: `cometmq bench --help` and --list start without it

        p50, p99, p999 = np.percentile(nanoseconds, PERCENTILES) / 1e3
        worst = float(nanoseconds.max()) / 1e3
        return cls(float(p50), float(p99), float(p999), worst, int(nanoseconds.size))


@dataclass(frozen=True, slots=True)
class ProcessReading:
    """The CPU seconds and resident kilobytes of one process.

    `anonymous_kb` leaves out mapped store files, which the page cache owns.
    """

    cpu_s: float
    resident_kb: int
    anonymous_kb: int


def read_process(pid: int) -> ProcessReading | None:
    """A reading from /proc/<pid>, or None where there is no /proc or the process has gone."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_bytes()
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return None
    fields = stat[stat.rindex(b")") + 2 :].split()
    ticks = int(fields[11]) + int(fields[12])
    sizes = dict.fromkeys(("VmRSS", "RssAnon"), 0)
    for line in status.splitlines():
        name, _, rest = line.partition(":")
        if name in sizes:
            sizes[name] = int(rest.split()[0])
    return ProcessReading(ticks / os.sysconf("SC_CLK_TCK"), sizes["VmRSS"], sizes["RssAnon"])


@dataclass(frozen=True, slots=True)
class MachineReading:
    """Seconds since the machine started: elapsed, taken by other guests, used by all and by us.

    Interrupts belong to nobody here: most of them are our own packets.
    """

    clock_s: float
    stolen_s: float
    used_s: float
    ours_s: float


def read_machine(pids: Iterable[int] = (), proc: Path = Path("/proc")) -> MachineReading | None:
    """Read the machine's times; None where there is no /proc.

    Ours are this process, its children that have ended, the processes `pids`, and the kernel's
    threads, which write our files.
    """
    try:
        names, *fields = (proc / "stat").read_text().split("\n", 1)[0].split()
    except (OSError, ValueError):
        return None
    if names != "cpu" or len(fields) < 8:
        return None
    wanted = set(pids)
    ours = 0
    for path in proc.glob("[0-9]*/stat"):
        # A process may end after we have listed its folder.
        with suppress(OSError, ValueError):
            stat = path.read_bytes()
            values = stat[stat.rindex(b")") + 2 :].split()
            if int(values[1]) == KERNEL_THREADS or int(path.parent.name) in wanted:
                ours += int(values[11]) + int(values[12])
    hertz = os.sysconf("SC_CLK_TCK")
    return MachineReading(
        time.monotonic(),
        int(fields[7]) / hertz,
        sum(map(int, fields[:3])) / hertz,
        ours / hertz + sum(os.times()[:4]),
    )


def shares_of_others(
    before: MachineReading | None, after: MachineReading | None
) -> tuple[float, float]:
    """The shares of the machine's time that other guests and other processes took between readings.

    Both are parts of the time of all cores; 0 where the system does not tell.
    """
    if before is None or after is None or after.clock_s <= before.clock_s:
        return 0.0, 0.0
    whole = (after.clock_s - before.clock_s) * (os.cpu_count() or 1)
    others_s = after.used_s - before.used_s - (after.ours_s - before.ours_s)
    return (after.stolen_s - before.stolen_s) / whole, max(0.0, others_s) / whole


def file_system(folder: Path) -> str:
    """Type and mount point of the file system that holds `folder`, as /proc/mounts tells."""
    try:
        lines = Path("/proc/mounts").read_text().splitlines()
    except OSError:
        return "unknown"
    best, kind = "", "unknown"
    real = str(folder.resolve())
    for line in lines:
        _, mount, name, *_ = line.split(" ")
        inside = real == mount or real.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) > len(best):
            best, kind = mount, name
    return f"{kind} on {best}" if best else kind


def cores() -> tuple[int, ...]:
    """The cores this process may run on; empty where the system cannot tell."""
    if not hasattr(os, "sched_getaffinity"):
        return ()
    return tuple(sorted(os.sched_getaffinity(0)))


def pin(core: int | None) -> bool:
    """Bind this process to one core; False where that is not possible or not asked for."""
    if core is None or not hasattr(os, "sched_setaffinity"):
        return False
    os.sched_setaffinity(0, {core})
    return True


@contextmanager
def on_core(core: int | None) -> Iterator[None]:
    """Processes started inside inherit one core; this process gets its cores back afterwards."""
    before = cores()
    pinned = pin(core)
    try:
        yield
    finally:
        if pinned:
            os.sched_setaffinity(0, before)


def fdatasync_us(folder: Path, size_bytes: int) -> Latency | None:
    """Time of one fdatasync after writing `size_bytes` into a preallocated file in `folder`."""
    if not hasattr(os, "fdatasync"):
        return None
    path = folder / f"fdatasync-probe-{os.getpid()}"
    block = os.urandom(size_bytes)
    import numpy as np

    durations = np.empty(FDATASYNC_ROUNDS, np.int64)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(descriptor, 0, size_bytes * FDATASYNC_ROUNDS)
        os.fsync(descriptor)
        for round_number in range(FDATASYNC_ROUNDS):
            os.pwrite(descriptor, block, round_number * size_bytes)
            begin = time.perf_counter_ns()
            os.fdatasync(descriptor)
            durations[round_number] = time.perf_counter_ns() - begin
    finally:
        os.close(descriptor)
        path.unlink()
    return Latency.of(durations)


@dataclass(frozen=True, slots=True)
class Conditions:
    """The conditions of a measurement as (name, value) rows.

    `fdatasync_us` is the median time of one fdatasync after 96 KiB, which is about what 256
    messages of 128 bytes leave behind; None where it cannot be measured.
    """

    rows: tuple[tuple[str, str], ...]
    fdatasync_us: float | None = None

    def as_dict(self) -> dict[str, str]:
        """The conditions for JSON."""
        return dict(self.rows)


def _version(distribution: str) -> str:
    from importlib import metadata

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return "absent"


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        return platform.processor() or platform.machine()
    return platform.machine()


def machine_conditions(
    folder: Path, server_core: int | None, generator_core: int | None
) -> Conditions:
    """Measure and describe machine, versions, cores and the disk's fdatasync under `folder`."""
    small, large = fdatasync_us(folder, 4096), fdatasync_us(folder, 98_304)
    pinning = (
        f"server on core {server_core}, generator on core {generator_core}"
        if server_core is not None
        else "not pinned"
    )
    rows = [
        (
            "machine",
            f"{_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.release()}",
        ),
        ("python", f"{platform.python_implementation()} {platform.python_version()}"),
        (
            "libraries",
            ", ".join(
                f"{name} {_version(name)}" for name in ("cometmq", "uvloop", "msgspec", "numpy")
            ),
        ),
        ("cores", pinning),
        ("store folder", f"{folder} ({file_system(folder)})"),
        (
            "load before",
            " ".join(f"{x:.2f}" for x in os.getloadavg())
            if hasattr(os, "getloadavg")
            else "unknown",
        ),
    ]
    for label, latency in (("4 KiB", small), ("96 KiB", large)):
        text = (
            f"p50 {latency.p50_us:.0f} us, p99 {latency.p99_us:.0f} us"
            if latency
            else "not available here"
        )
        rows.append((f"fdatasync {label}", text))
    rows.append(("command", " ".join(sys.argv)))
    return Conditions(tuple(rows), large.p50_us if large else None)


def median_of(values: list[Any]) -> float | None:
    """Median of the numbers among `values`; None if there are none."""
    numbers = [float(value) for value in values if value is not None]
    return float(median(numbers)) if numbers else None


def interval_of_median(
    values: Iterable[float], confidence: float = 0.95
) -> tuple[float, float] | None:
    """The interval between two of the values that contains the median with this confidence.

    Whatever the distribution, each of n independent values lies below the median with the chance of
    a coin, so that the k-th smallest and the k-th greatest enclose the median unless fewer than k
    of n coins show one side.  The interval is the narrowest of these whose chance to miss is at
    most 1 - `confidence`: the 6th and the 15th of 20 values.  None where even the extremes miss
    more often, as with five values.
    """
    ordered = sorted(values)
    count = len(ordered)
    rank, chance_below = 0, 0.0
    while rank < count // 2:
        chance_below += comb(count, rank) / 2**count
        if chance_below > (1 - confidence) / 2:
            break
        rank += 1
    return (ordered[rank - 1], ordered[-rank]) if rank else None
