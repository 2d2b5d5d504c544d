"""Reads `table.toml`, which lists every difference that the replay permits.

A row names captures (a glob over `set/file`), a request code ("*" for any; a list stands for as
many rows), a field and a reason.
Fields:
  skip                 the request (or the call of the server) is left out with its answer;
  frame                the answer has another code, or there is none: nothing more is compared;
  extra                we send something the capture does not hold;
  request.<name>       the request is changed before it is sent;
  shared <topic>       queue offsets of this topic start elsewhere: compared by distance;
  anything else        this field of the answer is not compared.
`lines` narrows a row to frames (numbers of the answer, or of the request for skip and request.*);
`property` narrows a skip to sends that carry this message property, `topic` (a glob) to requests
about a topic.
A row that hides nothing fails the test, and so does a difference without a row.
"""

import dataclasses
import fnmatch
import tomllib
from collections.abc import Collection
from pathlib import Path
from typing import Any

__all__ = ["Row", "Table", "load_table"]

PATH = Path(__file__).with_name("table.toml")


@dataclasses.dataclass
class Row:
    """One permitted deviation; `used` counts the differences that it hid."""

    capture: str
    code: int | str
    field: str
    reason: str
    lines: frozenset[int] = frozenset()
    message_property: str = ""
    topic: str = "*"
    used: dict[str, int] = dataclasses.field(default_factory=dict)

    def covers(
        self,
        capture: str,
        code: int,
        name: str,
        number: int,
        properties: Collection[str] = (),
        topic: str = "",
    ) -> bool:
        """Return whether this row permits a difference in that field of that frame."""
        return (
            fnmatch.fnmatchcase(name, self.field)
            and self.code in {"*", code}
            and (not self.lines or number in self.lines)
            and (not self.message_property or self.message_property in properties)
            and fnmatch.fnmatchcase(topic, self.topic)
            and fnmatch.fnmatchcase(capture, self.capture)
        )

    def label(self) -> str:
        """Return the row's name in a failure."""
        lines = f" lines {sorted(self.lines)}" if self.lines else ""
        return (
            f"{self.capture} code {self.code} {self.field}{lines} {self.message_property}".rstrip()
        )


@dataclasses.dataclass
class Table:
    """The rows, the captures with compared remarks, the state before each, the counts."""

    rows: list[Row]
    remarks: list[Row]
    scenarios: dict[str, dict[str, Any]]
    numbers: dict[str, dict[str, int]]

    def permit(
        self,
        capture: str,
        code: int,
        name: str,
        number: int,
        properties: Collection[str] = (),
        topic: str = "",
    ) -> bool:
        """Use the first row that covers the field; False if there is none."""
        for row in self.rows:
            if row.covers(capture, code, name, number, properties, topic):
                row.used[capture] = row.used.get(capture, 0) + 1
                return True
        return False

    def compares_remark(self, capture: str, code: int, number: int) -> bool:
        """Return whether the remark of this answer must be equal."""
        for row in self.remarks:
            if row.covers(capture, code, "remark", number):
                row.used[capture] = row.used.get(capture, 0) + 1
                return True
        return False


def load_table() -> Table:
    """Read the table from its file; no row is used yet."""
    raw = tomllib.loads(PATH.read_text(encoding="utf-8"))
    return Table(
        [row for item in raw.get("row", []) for row in _rows(item)],
        [row for item in raw.get("remark", []) for row in _rows(item | {"field": "remark"})],
        {item["capture"]: item for item in raw.get("scenario", [])},
        {item["set"]: {k: v for k, v in item.items() if k != "set"} for item in raw["numbers"]},
    )


def _rows(item: dict[str, Any]) -> list[Row]:
    """Return one row for each code that an entry names; each row must be used."""
    unknown = item.keys() - {"capture", "code", "field", "reason", "lines", "property", "topic"}
    assert not unknown, unknown
    assert item["reason"].strip(), item
    codes = item["code"] if isinstance(item["code"], list) else [item["code"]]
    lines = frozenset(item.get("lines", []))
    return [
        Row(
            item["capture"],
            code,
            item["field"],
            item["reason"],
            lines,
            item.get("property", ""),
            item.get("topic", "*"),
        )
        for code in codes
    ]
