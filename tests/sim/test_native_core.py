"""A simulated cluster does the same with the native core and without it."""

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pytest

from cometmq import native
from cometmq.testing.simulate import Plan, Report, plan_of, run_plan
from cometmq.testing.simulation import World

pytestmark = pytest.mark.skipif(
    native.SendEncoder is None, reason=f"there is nothing to compare: {native.describe()}"
)

#: A read that has plain sends and another one is one write to the log in Python and two with the
#: core, so a fault at the n-th step is another one.
PLANS = [
    plan
    for plan in map(plan_of, range(8100, 8180))
    if not any("step-" in fault.kind or "copy-" in fault.kind for fault in plan.faults)
]
LOG_WRITES = "disk.write.commitlog"


@dataclass
class Watched:
    """What the core did in a run, and where the run wrote."""

    worlds: list[World]
    encoded_count: int = 0
    hashed_count: int = 0
    answered_count: int = 0

    def files(self) -> dict[str, str]:
        """SHA-256 of every file on every simulated disk."""
        return {
            f"{name}:{path}": hashlib.sha256(node.disk._inode(path).read(0, size)).hexdigest()
            for world in self.worlds
            for name, node in world.nodes.items()
            for path, size in node.disk.tree().items()
        }


@pytest.fixture
def watched(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watched]:
    """Count the runs that the core encodes and the messages that it hashes; keep the worlds."""
    watched = Watched([])
    begin, new_encoder, hash_keys = World.__init__, native.SendEncoder, native.hash_keys
    assert new_encoder is not None
    assert hash_keys is not None
    answer_pull = native.answer_pull
    assert answer_pull is not None

    def noted(self: World, *arguments: Any) -> None:
        watched.worlds.append(self)
        begin(self, *arguments)

    class Counted:
        def __init__(self, *arguments: Any) -> None:
            self._encode: Callable[..., Any] = new_encoder(*arguments).encode

        def encode(self, *arguments: Any) -> Any:
            run = self._encode(*arguments)
            watched.encoded_count += run is not None
            return run

    def counted(batch: Any) -> Any:
        watched.hashed_count += len(batch)
        return hash_keys(batch)

    def answered(*arguments: Any) -> Any:
        answer = answer_pull(*arguments)
        watched.answered_count += answer is not None
        return answer

    monkeypatch.setattr(World, "__init__", noted)
    monkeypatch.setattr(native, "answer_pull", answered)
    monkeypatch.setattr(native, "SendEncoder", Counted)
    monkeypatch.setattr(native, "hash_keys", counted)
    yield watched
    watched.worlds.clear()


def run(plan: Plan, watched: Watched) -> tuple[Report, dict[str, str]]:
    """Simulate a plan; return its outcome and all that is on its disks."""
    watched.worlds.clear()
    report = run_plan(plan)
    assert report.failure is None
    assert report.hits.pop(LOG_WRITES)
    return report, watched.files()


@pytest.mark.timeout(240)
def test_same_seeds_same_outcomes(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    """Same seeds, same outcomes in both modes: counts, each step of the trace, each byte."""
    outcomes = [run(plan, watched) for plan in PLANS]
    assert watched.encoded_count > 50, "the core took hardly any send"
    assert watched.hashed_count > 50, "the core hashed hardly any key"
    assert watched.answered_count > 20, "the core answered hardly any pull that found messages"
    names = ("hash_keys", "link_entries", "gather_records", "scan_records", "check_entries")
    for name in ("SendEncoder", "CopyEncoder", "read_pull", "answer_pull", *names):
        monkeypatch.setattr(native, name, None)
    for plan, (report, files) in zip(PLANS, outcomes, strict=True):
        pure_report, pure_files = run(plan, watched)
        assert report == pure_report, plan.command()
        assert any("/commitlog/" in path for path in files)
        assert files == pure_files, plan.command()
