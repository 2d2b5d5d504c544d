"""Golden store tests check what is read and written, not how durable it is."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_the_platter(monkeypatch: pytest.MonkeyPatch) -> None:
    """Replace fdatasync: a call takes up to tens of milliseconds, and these tests make many."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)
    monkeypatch.setattr(os, "sync", lambda: None)
