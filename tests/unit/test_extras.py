"""Extras: which one a module needs, and what says so."""

import subprocess
import sys

import pytest

from cometmq import extras
from cometmq.errors import ConfigError
from cometmq.extras import install_line, require

#: An interpreter in which one module cannot be imported.
WITHOUT = "import sys; sys.modules[{module!r}] = None; sys.argv = ['cometmq', {argument!r}]\n"


@pytest.mark.parametrize(
    ("module", "line"),
    [
        ("click", "pip install 'cometmq[cli]'"),
        ("rich.table", "pip install 'cometmq[cli]'"),
        ("numpy", "pip install 'cometmq[broker]'"),
        ("pyarrow", "pip install 'cometmq[arrow]'"),
        ("json", None),
    ],
)
def test_install_line(module: str, line: str | None) -> None:
    """The smallest extra that brings a module."""
    assert install_line(module) == line


def test_require(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is there passes; the first missing module is named with its line."""
    require("broker", "cometmq up")
    monkeypatch.setitem(extras.EXTRAS, "broker", ("numpy", "no_such_module"))
    with pytest.raises(ConfigError) as error:
        require("broker", "cometmq up")
    text = "cometmq up needs no_such_module: pip install 'cometmq[broker]'"
    assert str(error.value) == text


@pytest.mark.parametrize(
    ("module", "argument", "text"),
    [
        ("click", "--help", "cometmq: the command line needs click: pip install 'cometmq[cli]'\n"),
        ("cometmq.cli.terminal.lazy", "--help", None),
    ],
)
def test_command_without_its_extra(module: str, argument: str, text: str | None) -> None:
    """One line and code 2; a module of our own that is missing is a bug, and shown as one."""
    script = WITHOUT.format(module=module, argument=argument) + (
        "from cometmq.__main__ import main\nmain()\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == (2 if text else 1)
    assert result.stderr == text if text else "ModuleNotFoundError" in result.stderr


@pytest.mark.parametrize("extra", ["faststream"])
def test_integration_without_its_extra(extra: str) -> None:
    """The import says how to install it."""
    script = f"import sys; sys.modules[{extra!r}] = None\nimport cometmq.integrations.{extra}\n"
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    text = f"cometmq.integrations.{extra} needs {extra}: pip install 'cometmq[{extra}]'\n"
    assert result.stderr.endswith(text)
