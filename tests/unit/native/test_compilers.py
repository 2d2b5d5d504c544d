"""The C of the core: no compiler warns, only the stable ABI is used, and reads are bounded."""

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path

import pytest
from hatch_build import FLAGS, NATIVE, TARGET, WARNINGS

from cometmq import native

ROOT = Path(__file__).resolve().parents[3]
C_FILES = sorted((ROOT / "src" / "cometmq" / "native" / "c").glob("*.c"))
FUZZ_FILES = sorted((ROOT / "fuzz" / "native").glob("*.c"))
STABLE_PRIVATE = {
    "_PyArg_ParseTupleAndKeywords_SizeT",
    "_PyArg_ParseTuple_SizeT",
    "_PyObject_CallFunction_SizeT",
    "_Py_BuildValue_SizeT",
    "_Py_Dealloc",
    "_Py_NoneStruct",
    "_Py_TrueStruct",
}
"""What macros of the limited API stand for; they are in CPython's Misc/stable_abi.toml."""
STEPS = re.compile(r"(?<!gathering)(\.|->)(next|end)\b|\.start\[|\.start [+-]|\.buf [+-]")
"""A cursor moved, or bytes read, by hand."""


@pytest.mark.parametrize("path", [*C_FILES, *FUZZ_FILES], ids=lambda path: path.name)
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_no_warning(compiler: str, path: Path, tmp_path: Path) -> None:
    """Warnings are errors, with two compilers."""
    if shutil.which(compiler) is None:
        pytest.skip(f"needs {compiler}: apt-get install {compiler}")
    flags = [flag for flag in FLAGS if path in C_FILES or not flag.startswith("-std")]
    includes = [f"-I{C_FILES[0].parent}", f"-isystem{sysconfig.get_path('include')}"]
    result = subprocess.run(
        [compiler, *flags, *WARNINGS, "-Werror", *includes, "-c", path, "-o", tmp_path / "object"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert result.returncode == 0, result.stderr


def test_only_the_stable_abi() -> None:
    """One build serves every later Python: the core asks for nothing private."""
    assert "#define Py_LIMITED_API 0x030B0000" in (C_FILES[0].parent / "core.h").read_text()
    for path in C_FILES:
        text = path.read_text()
        assert "Python.h" not in text, f"{path.name}: include core.h, which limits the API"
    module = ROOT / NATIVE / TARGET
    if not module.exists() or shutil.which("nm") is None:
        pytest.skip(f"needs nm and a built core: {native.describe()}")
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", module], capture_output=True, text=True, check=True
    ).stdout
    names = {line.split()[-1] for line in symbols.splitlines()}
    assert "PyBytes_FromStringAndSize" in names
    assert {name for name in names if name.startswith("_Py")} <= STABLE_PRIVATE


@pytest.mark.parametrize("path", C_FILES, ids=lambda path: path.name)
def test_every_read_goes_through_the_cursor(path: Path) -> None:
    """Only bytes.h moves a cursor or reads at an address; every other file calls it."""
    steps = [line.strip() for line in path.read_text().splitlines() if STEPS.search(line)]
    assert steps == []
