"""A client's captured requests, replayed against our servers, get equal answers."""

import asyncio
from pathlib import Path

import pytest
from tests.golden.replay.captures import load_scenario, scenario_names
from tests.golden.replay.replay import Counts, replay
from tests.golden.replay.table import Table, load_table

SETS = (
    *("java-5.4.0", "java-5.4.0-binary", "java-4.9.8", "java-4.9.8-binary"),
    *("go-2.1.2", "mqadmin-5.4.0"),
)
AT_ONCE = 24
"""Scenarios that run side by side: most of their time is waiting for delays and sweeps."""

pytestmark = [pytest.mark.timeout(240), pytest.mark.slow]


class Played:
    """The result of playing every scenario once with one table, whose rows may serve several."""

    def __init__(self, directory: Path) -> None:
        self.table: Table = load_table()
        self.results: dict[str, Counts] = {}
        asyncio.run(self._play(directory))

    async def _play(self, directory: Path) -> None:
        gate = asyncio.Semaphore(AT_ONCE)
        left_out = {name for name, item in self.table.scenarios.items() if item.get("left_out")}

        async def one(name: str) -> None:
            async with gate:
                place = directory / name.replace("/", "-")
                place.mkdir()
                try:
                    self.results[name] = await replay(load_scenario(name), self.table, place)
                except BaseException as error:
                    error.add_note(f"while replaying {name}")
                    raise

        async with asyncio.TaskGroup() as tasks:
            for set_name in SETS:
                for name in scenario_names(set_name):
                    if name not in left_out:
                        tasks.create_task(one(name))


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    """Replay all captures."""
    return Played(tmp_path_factory.mktemp("replay"))


@pytest.mark.parametrize("set_name", SETS)
def test_every_answer_is_equal_or_in_the_table(set_name: str, played: Played) -> None:
    """Every difference has a row in the table."""
    results = [counts for name, counts in played.results.items() if name.startswith(set_name + "/")]
    assert results, f"no captures of {set_name}"
    assert [text for counts in results for text in counts.unlisted] == []


@pytest.mark.parametrize("set_name", SETS)
def test_as_many_frames_as_the_table_says(set_name: str, played: Played) -> None:
    """The numbers of compared, deviating and skipped frames equal those in the table."""
    totals: dict[str, int] = {}
    for capture, counts in played.results.items():
        if capture.startswith(set_name + "/"):
            for name, number in counts.numbers().items():
                totals[name] = totals.get(name, 0) + number
    assert totals == played.table.numbers[set_name]


def test_every_row_hides_something(played: Played) -> None:
    """Every row hides a difference; a row without one must go."""
    rows = played.table.rows + played.table.remarks
    assert [row.label() for row in rows if not row.used] == []


def test_capture_frames_add_up(played: Played) -> None:
    """Every frame was sent, compared, listed as deviating or skipped."""
    for name, counts in played.results.items():
        parts = counts.sent + counts.compared + counts.deviating + counts.skipped
        assert parts == counts.frames, name
