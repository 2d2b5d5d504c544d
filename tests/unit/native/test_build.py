"""The build of the core: with a compiler it is there, without one the reason is said."""

import shutil
from pathlib import Path

import pytest
from hatch_build import NATIVE, TARGET, build, compiler

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the sources, with a core that an earlier build left."""
    shutil.copytree(ROOT / NATIVE / "c", tmp_path / NATIVE / "c")
    (tmp_path / NATIVE / TARGET).write_bytes(b"old")
    return tmp_path


def test_a_compiler_that_is_not_there(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An installation without a compiler works as before: no core, and the reason."""
    monkeypatch.setenv("CC", "/nonexistent/cc -O3")
    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    assert build(tree) == "/nonexistent/cc cannot be run: No such file or directory"
    assert not (tree / NATIVE / TARGET).exists()


def test_a_compiler_that_fails(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A compiler that fails, say without Python's headers, stops no installation either."""
    monkeypatch.setenv("CC", "false")
    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    assert build(tree).startswith("false failed")
    assert not (tree / NATIVE / TARGET).exists()


def test_switched_off(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """COMETMQ_PURE=1 at the installation leaves the core out."""
    monkeypatch.setenv("COMETMQ_PURE", "1")
    assert build(tree) == "COMETMQ_PURE=1"
    assert not (tree / NATIVE / TARGET).exists()


def test_with_a_compiler(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a compiler the core is built anew."""
    monkeypatch.delenv("COMETMQ_PURE", raising=False)
    if not compiler():
        pytest.skip("needs a C compiler: apt-get install gcc")
    assert not build(tree)
    assert (tree / NATIVE / TARGET).read_bytes()[:4] in {b"\x7fELF", b"\xcf\xfa\xed\xfe"}
