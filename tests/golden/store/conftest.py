"""Golden stores are about what is read and written, not about how durable it is."""

import os

import pytest


@pytest.fixture(autouse=True)
def _no_waiting_for_the_platter(monkeypatch: pytest.MonkeyPatch) -> None:
    """A flush takes tens of milliseconds on some machines, and these tests make thousands."""
    for name in ("fsync", "fdatasync"):
        monkeypatch.setattr(os, name, lambda _fd: None)
    monkeypatch.setattr(os, "sync", lambda: None)
