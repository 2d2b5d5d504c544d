"""The command line itself: its table, its help, its errors and exit codes."""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from cometmq import __version__, errors, native
from cometmq.cli.main import COMMANDS, root
from cometmq.cli.terminal import exit_codes


def run_cometmq(*arguments: str, timeout: float = 50) -> subprocess.CompletedProcess[str]:
    """`cometmq ARGUMENTS` in a process of its own."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", *arguments],
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )


@pytest.mark.parametrize("name", COMMANDS)
def test_table_tells_what_the_command_tells(name: str) -> None:
    """The help table is a copy, kept so that --help imports no command; copies must not drift."""
    with click.Context(root) as context:
        command = root.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.short_help == COMMANDS[name][2]


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_explains_itself(name: str) -> None:
    """--help of each command works without a cluster."""
    result = CliRunner().invoke(root, [name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output
    assert len(result.output.splitlines()) > 5


def test_help_lists_every_command() -> None:
    """The first page shows all commands and the exit codes."""
    result = run_cometmq("--help")
    assert result.returncode == 0
    assert all(name in result.stdout for name in COMMANDS)
    assert "Exit codes" in result.stdout


def test_version() -> None:
    """--version prints name and version, and says which code runs."""
    expected = f"cometmq, version {__version__}, {native.describe()}"
    assert run_cometmq("--version").stdout.strip() == expected


def test_native_core_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """COMETMQ_PURE=1 switches the native core off, and --version says so."""
    monkeypatch.setenv("COMETMQ_PURE", "1")
    assert "pure Python (COMETMQ_PURE=1)" in run_cometmq("--version").stdout


def test_unknown_command_is_answered_with_the_nearest() -> None:
    """A typo gets a suggestion and exit code 2."""
    result = run_cometmq("tpoic")
    assert result.returncode == exit_codes.USAGE
    assert "'topic'" in result.stderr


def test_error_is_one_line_without_traceback() -> None:
    """A CometError is told in one line on stderr; the code says which kind it was."""
    result = run_cometmq("up", "--set", "listenPrt=1")
    assert result.returncode == exit_codes.USAGE
    assert "Traceback" not in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
    assert "listenPort" in result.stderr


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.ConfigError("x"), 2),
        (errors.ConnectFailed("x"), 3),
        (errors.RequestTimeout("x"), 3),
        (errors.NoRoute("x"), 4),
        (errors.remote_error(17, "no such topic"), 4),
        (errors.remote_error(26, "no such group"), 4),
        (errors.StoreLocked("x"), 5),
        (errors.StoreCorrupt("x"), 5),
        (errors.remote_error(1, "system error"), 1),
    ],
)
def test_exit_codes(error: errors.CometError, code: int) -> None:
    """Each class of error has its exit code."""
    assert exit_codes.exit_code(error) == code


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str) -> None:
    """Each shell gets a script that calls back into the command."""
    result = CliRunner().invoke(root, ["completion", shell])
    assert result.exit_code == 0
    assert "_COMETMQ_COMPLETE" in result.output


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("cometmq", "pro"), {"produce", "profile"}),
        (
            ("cometmq", "topic", ""),
            {
                "list",
                "create",
                "delete",
                "route",
                "status",
                "grow",
                "shrink",
                "growth",
                "when-away",
            },
        ),
        (("cometmq", "completion", ""), {"bash", "zsh", "fish"}),
        (("cometmq", "topic", "create", "--q"), {"--queues"}),
    ],
)
def test_completion_answers(words: tuple[str, ...], expected: set[str]) -> None:
    """The completion script's question after the tabulator key returns the candidates."""
    asked = {"COMP_WORDS": " ".join(words), "COMP_CWORD": str(len(words) - 1)}
    result = subprocess.run(
        [sys.executable, "-c", "from cometmq.cli.main import main; main()"],
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
        env={**os.environ, **asked, "_COMETMQ_COMPLETE": "bash_complete"},
    )
    assert result.stderr == ""
    assert {line.partition(",")[2] for line in result.stdout.splitlines()} == expected


def test_closed_pipe_is_no_error() -> None:
    """`cometmq ... | head -1` ends in silence."""
    script = f"{sys.executable} -m cometmq completion bash | head -n 1"
    result = subprocess.run(
        ["sh", "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 0
    assert result.stderr == ""


def _children(pid: int) -> dict[int, str]:
    """Process ids and command lines of a process' children."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            parent = path.read_text().rpartition(")")[2].split()[1]
            if int(parent) == pid:
                line = path.with_name("cmdline").read_bytes()
                found[int(path.parent.name)] = line.replace(b"\0", b" ").decode()
    return found


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="no /proc to find children in")
@pytest.mark.processes
def test_sigterm_leaves_no_broker_behind(tmp_path: Path) -> None:
    """A bench that is ended stops the broker it had started, and takes its store along."""
    bench = subprocess.Popen(
        [
            *(sys.executable, "-m", "cometmq", "bench", "--kind", "send", "--rounds", "1"),
            *("--seconds", "60", "--no-echo", "--no-pin", "--store", str(tmp_path)),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    brokers: list[int] = []
    try:
        deadline = time.monotonic() + 30
        while not brokers and time.monotonic() < deadline and bench.poll() is None:
            time.sleep(0.05)
            brokers = [pid for pid, line in _children(bench.pid).items() if " up " in line]
        assert brokers, "no broker was started"
        bench.terminate()
        _, errors_text = bench.communicate(timeout=40)
        assert bench.returncode == 143, errors_text
        assert not Path(f"/proc/{brokers[0]}").exists()
        assert list(tmp_path.iterdir()) == []
    finally:
        bench.kill()
        bench.wait()


def test_options_of_all_commands_stand_before_them() -> None:
    """A root option after a command is refused, and the error says where it belongs."""
    result = run_cometmq("topic", "list", "--quiet")
    assert result.returncode == 2
    assert "No such option '--quiet'." in result.stderr
    assert "--quiet stands before the command: cometmq --quiet ..." in result.stderr
