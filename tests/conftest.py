"""Settings of all tests: hypothesis, lanes, order, and that an empty run is a failure.

Four processes share the tests (``-n 4``), two more than the processors of a small machine: what
waits for a kill, a timer or a foreign peer leaves its processor to the others.  A file stays in one
process, and so do all files of a folder that shares something dear: the one Spark session, the
foreign peers.

Tests marked ``full`` belong to the long lanes ``make interop`` (``INTEROP=full``), ``make spark``
(``SPARK=full``), ``make patterns`` (``PATTERNS=full``) and ``make replicas`` (``REPLICAS=full``);
``slow.txt`` lists those of ``make slow`` (``SLOW=full``) and why each can wait.  A plain run leaves
them out and says how many.
"""

import gc
import logging
import os
import re
import signal
import socket
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadScopeScheduling

settings.register_profile(
    "default",
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "30")),
    deadline=None,  # timings are never asserted; pytest-timeout catches a hang
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")

# Tests start hundreds of interpreters.  The first compiles the package, the others read that; each
# would else compile for a third of a second where the environment says to keep nothing.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

# Commands here do not read the profiles of whoever runs the tests.
os.environ["COMETMQ_PROFILES"] = str(Path(__file__).with_name("no-profiles.json"))
os.environ.pop("COMETMQ_PROFILE", None)

# Where the suite runs as a shell's background job SIGINT is ignored, and would be in all that the
# tests start: those that send it would see nothing.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
ONE_PROCESS = {"interop", "patterns", "spark"}
LANES = {"install", "interop", "patterns", "replicas", "spark"}
"""Folders whose tests marked ``full`` have a lane of their own."""
RERUN: dict[str, str] = {}
"""Test file or test: why it may run once more.  Only where a foreign process can lose a race that
we do not own; the summary names each test that did (``RERUN``)."""
BIGGEST = ("spark", "interop")
QUICK = {"property", "unit/codec", "unit/core", "unit/namesrv", "unit/testing", "unit/wire"}
"""Folders whose files take a second or two: the last ones, so that all processes end together."""


SLOW = [line for line in (TESTS / "slow.txt").read_text().splitlines() if line and line[0] != "#"]
"""Patterns of tests that only ``make slow`` runs."""


def is_lane_on(folder: str) -> bool:
    """Whether the tests of this folder's long lane run."""
    variable = folder.upper() if folder in LANES else "SLOW"
    return os.environ.get(variable) == "full"


def slow_tests(node_ids: Sequence[str]) -> dict[str, set[str]]:
    """Return the tests that each pattern of `SLOW` matches."""
    by_file: dict[str, list[str]] = {}
    for node_id in node_ids:
        by_file.setdefault(node_id.split("::", 1)[0], []).append(node_id)
    matches = {}
    for pattern in SLOW:
        test_file = f"tests/{pattern}".split("::", 1)[0]
        matcher = re.compile(re.escape(f"tests/{pattern}").replace(r"\*", ".*"))
        matches[pattern] = set(filter(matcher.fullmatch, by_file.get(test_file, [])))
    return matches


def turn_of(path: Path) -> int:
    """Return a file's rank in the run: the biggest folders first, the quick ones last."""
    folder = path.parts[0]
    if folder in BIGGEST:
        return BIGGEST.index(folder)
    return len(BIGGEST) + int(folder in QUICK or path.parent.as_posix() in QUICK)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests that may run again, leave out the long lanes, and sort the others.

    Raises:
        UsageError: a pattern of slow.txt matches none of the whole suite's tests.
    """
    matches = slow_tests([item.nodeid for item in items])
    stale = sorted(pattern for pattern, node_ids in matches.items() if not node_ids)
    if stale and config.args == config.getini("testpaths"):
        raise pytest.UsageError(f"patterns of tests/slow.txt match no test: {', '.join(stale)}")
    slow = set().union(*matches.values())
    left_out = []
    turns = {}
    for item in items:
        path = item.path.relative_to(TESTS) if TESTS in item.path.parents else item.path
        folder = path.parts[0]
        turns[item] = turn_of(path)
        if {path.as_posix(), f"{path.as_posix()}::{item.name}"} & RERUN.keys():
            item.add_marker(pytest.mark.flaky(reruns=1, reruns_delay=1))
        is_long = item.nodeid in slow or item.get_closest_marker("full") is not None
        if is_long and not is_lane_on(folder):
            left_out.append(item)
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        out = set(left_out)
        items[:] = [item for item in items if item not in out]
    items.sort(key=turns.__getitem__)


def pytest_collection_finish() -> None:
    """The collector passes over all that stays for the whole run: modules and the tests themselves.

    Else each full collection walks them, after every simulation, say: with 284,000 objects that is
    more than a quarter of the processor time of `tests/sim/test_simulator.py`.
    """
    gc.collect()
    gc.freeze()


class ByFolderOrFile(LoadScopeScheduling):
    """Gives a process a whole file, or a whole folder of `ONE_PROCESS`, at a time.

    pytest-xdist's own way to say this, a mark for each group, rests on a private field that
    pytest 9.2 no longer has.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.split("::", 1)[0]
        folder = path.removeprefix("tests/").split("/", 1)[0]
        return folder if folder in ONE_PROCESS else path


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFolderOrFile:
    """Used with ``-n``; work is handed out in the order of the tests, not by their number."""
    config.option.loadscopereorder = False
    return ByFolderOrFile(config, log)


@pytest.fixture(autouse=True)
def keep_sigterm() -> Iterator[None]:
    """Commands that run in this process set a handler; processes forked later would inherit it."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    if signal.getsignal(signal.SIGTERM) is not handler and handler is not None:
        signal.signal(signal.SIGTERM, handler)


@pytest.fixture(autouse=True)
def keep_logging() -> Iterator[None]:
    """Commands that run in this process choose what is logged; later tests read their logs."""
    disabled = logging.root.manager.disable
    level = logging.getLogger("cometmq").level
    yield
    logging.disable(disabled)
    logging.getLogger("cometmq").setLevel(level)


class ExecutedCount:
    """Counts executed tests, since a run that only skips must not look like a pass."""

    def __init__(self) -> None:
        self.executed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count each test whose body ran, passed or failed."""
        if report.when == "call" and not report.skipped:
            self.executed += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn a green run that executed nothing into "no tests collected" (5)."""
        if exitstatus == 0 and self.executed == 0 and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    """Count executed tests in every run, and send notes about reruns without delay.

    Each test that may run again tells the main process its count and asks for it (``set``, then
    ``get``, on one connection).  With Nagle's algorithm the second waits for the first to be
    acknowledged, 40 ms for each test.
    """
    config.pluginmanager.register(ExecutedCount(), "executed-count")
    line = getattr(getattr(config, "failures_db", None), "sock", None)
    if isinstance(line, socket.socket):
        line.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
