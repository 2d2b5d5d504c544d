"""Completion in the shells themselves: the script is sourced, keys are pressed, words appear.

A shell that is not installed skips its tests visibly.
"""

import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

pty = pytest.importorskip("pty", reason="shells are driven through a terminal")

STEPS_S = 60.0
WORDS = [
    ("cometmq prod", "cometmq produce"),
    ("cometmq topic cr", "cometmq topic create"),
    ("cometmq topic create --que", "cometmq topic create --queues"),
    ("cometmq completion f", "cometmq completion fish"),
]
LISTED = ("list", "create", "delete", "route", "status")


def needed(shell: str) -> str:
    """The shell's path, or a visible skip."""
    path = shutil.which(shell)
    if path is None:
        pytest.skip(f"{shell} is not installed")
    return path


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with `cometmq` in its `bin`, and a script for each shell, as the help says."""
    (tmp_path / "bin").mkdir()
    command = tmp_path / "bin" / "cometmq"
    command.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m cometmq "$@"\n')
    command.chmod(0o755)
    for shell in ("bash", "zsh", "fish"):
        made = subprocess.run(
            [str(command), "completion", shell], capture_output=True, timeout=50, check=True
        )
        (tmp_path / f"script.{shell}").write_bytes(made.stdout)
    return tmp_path


def environment(home: Path) -> dict[str, str]:
    """Nothing of the user's own settings."""
    path = f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}"
    kept = {name: os.environ[name] for name in ("PYTHONPATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), "PATH": path, "TERM": "dumb", "PS1": "$ "}


class Terminal:
    """A shell at a terminal: what is typed, and what appears."""

    def __init__(self, command: list[str], home: Path) -> None:
        self._master, slave = pty.openpty()
        self._shell = subprocess.Popen(
            command,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            env=environment(home),
            cwd=home,
            start_new_session=True,
        )
        os.close(slave)
        os.set_blocking(self._master, False)
        self.screen = ""

    def type(self, keys: str) -> None:
        """Press keys; what appears from now on is a new screen."""
        self.screen = ""
        os.write(self._master, keys.encode())

    def wait_for(self, *texts: str) -> None:
        """Until all of these have appeared since the last keys."""
        deadline = time.monotonic() + STEPS_S
        while not all(text in self.screen for text in texts):
            assert time.monotonic() < deadline, f"{texts} did not appear: {self.screen!r}"
            try:
                self.screen += os.read(self._master, 65536).decode(errors="replace")
            except BlockingIOError:
                time.sleep(0.02)

    def close(self) -> None:
        """End the shell."""
        self._shell.kill()
        self._shell.wait()
        os.close(self._master)


def press_tab(terminal: Terminal) -> str:
    """Complete every case of the table, and a list of choices; return the last screen."""
    for typed, completed in WORDS:
        terminal.type(f"{typed}\t")
        terminal.wait_for(completed)
        terminal.type("\x15\n")  # kill the line, take the next
    terminal.type("cometmq topic \t\t")
    terminal.wait_for(*LISTED)
    return terminal.screen


def test_bash(home: Path) -> None:
    """Words and options are completed at the tabulator key."""
    terminal = Terminal([needed("bash"), "--norc", "--noprofile", "-i"], home)
    try:
        terminal.type(". ./script.bash; bind 'set bell-style none'; echo rea''dy\n")
        terminal.wait_for("ready")
        assert "status" in press_tab(terminal)
    finally:
        terminal.close()


def test_zsh(home: Path) -> None:
    """The same, with zsh's own completion system loaded as its users load it."""
    terminal = Terminal([needed("zsh"), "-f", "-i"], home)
    try:
        terminal.type("autoload -Uz compinit && compinit -D && . ./script.zsh; echo rea''dy\n")
        terminal.wait_for("ready")
        assert "status" in press_tab(terminal)
    finally:
        terminal.close()


@pytest.mark.parametrize(("typed", "completed"), WORDS)
def test_fish(typed: str, completed: str, home: Path) -> None:
    """fish completes a line given as text; each candidate may carry a description."""
    fish = needed("fish")
    folder = home / ".config" / "fish" / "completions"
    folder.mkdir(parents=True)
    shutil.copy(home / "script.fish", folder / "cometmq.fish")
    answer = subprocess.run(
        [fish, "-c", f"complete --do-complete '{typed}'"],
        capture_output=True,
        text=True,
        timeout=STEPS_S,
        env=environment(home),
        check=False,
    )
    assert answer.stderr == ""
    words = [line.partition("\t")[0] for line in answer.stdout.splitlines()]
    assert words == [completed.rpartition(" ")[2]]
