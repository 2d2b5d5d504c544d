"""The table in interop/README.md says what runs."""

from pathlib import Path

import pytest
from tests.interop.kinds import KINDS
from tests.interop.matrix import table

README = Path(__file__).resolve().parents[2] / "interop" / "README.md"


def test_the_table_of_kinds_is_that_of_the_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each kind has its tests, each with the clients and brokers it runs with."""
    monkeypatch.delenv("INTEROP_PAIRS", raising=False)
    made = table()
    assert {line.split(" | ")[0].strip("| ") for line in made.splitlines()[2:]} == set(KINDS)
    assert made in README.read_text("utf-8"), f"interop/README.md needs this table:\n{made}"
