"""Without a core that fits, Python does the work and says why."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from types import ModuleType

import pytest

from cometmq import native


def test_core_of_an_older_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    """I pulled new commits into my clone, and every command died of an AttributeError."""
    monkeypatch.delenv(native.PURE_VARIABLE, raising=False)
    monkeypatch.setitem(sys.modules, "cometmq.native._core", ModuleType("_core"))
    assert native.__file__ is not None
    spec = spec_from_file_location("native_again", native.__file__)
    assert spec is not None
    assert spec.loader is not None
    again = module_from_spec(spec)
    spec.loader.exec_module(again)
    assert again.SendEncoder is again.hash_keys is again.gather_records is None
    assert again.cut_messages is again.decode_record is again.record_body is None
    assert again.encode_send_request is again.take_send_answers is None
    assert again.scan_records is again.check_entries is None
    expected = "pure Python (the core is older than this tree, run python hatch_build.py)"
    assert again.describe() == expected
