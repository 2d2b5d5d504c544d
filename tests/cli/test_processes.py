"""`broker --processes`: clients use a family of brokers, and tests kill its processes."""

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from cometmq.errors import ConfigError
from cometmq.standalone.supervisor import check_stores

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

SMALL = ("--set", "mappedFileSizeCommitLog=4194304", "--set", "mappedFileSizeConsumeQueue=60000")
WAIT_S = 60.0


class Process:
    """A running `cometmq` command with everything it wrote."""

    def __init__(self, *arguments: str) -> None:
        self.popen = subprocess.Popen(
            [sys.executable, "-m", "cometmq", *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"},
        )
        self.log: list[str] = []
        self.output: list[str] = []
        self._readers = [
            threading.Thread(target=self._read, args=pair, daemon=True)
            for pair in ((self.popen.stderr, self.log), (self.popen.stdout, self.output))
        ]
        for reader in self._readers:
            reader.start()

    @staticmethod
    def _read(stream: "object", lines: list[str]) -> None:
        for line in stream:  # type: ignore[attr-defined]
            lines.append(line)  # noqa: PERF402 - seen line by line while it runs

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """The first line of either stream that matches, once it is there."""
        deadline = time.monotonic() + WAIT_S
        while time.monotonic() < deadline:
            for line in [*self.output, *self.log]:
                found = re.search(pattern, line)
                if found is not None:
                    return found
            if self.popen.poll() is not None and not any(r.is_alive() for r in self._readers):
                break
            time.sleep(0.02)
        pytest.fail(f"no line matches {pattern!r}:\n{''.join(self.output + self.log)}")

    def children(self) -> dict[str, int]:
        """Process id by broker name."""
        found = {}
        for child in psutil.Process(self.popen.pid).children():
            # The last one wins, as it does for the child.
            names = re.findall(r"brokerName=(\S+)", " ".join(child.cmdline()))
            if names:
                found[names[-1]] = child.pid
        return found

    def close(self) -> None:
        """End it and whatever it left."""
        children = list(self.children().values()) if self.popen.poll() is None else []
        self.popen.kill()
        self.popen.wait()
        for reader in self._readers:
            reader.join(10)
        for pid in children:
            if psutil.pid_exists(pid):
                os.kill(pid, signal.SIGKILL)
        for stream in (self.popen.stdout, self.popen.stderr):
            assert stream is not None
            stream.close()


@contextmanager
def running(*arguments: str) -> Iterator[Process]:
    """A command for the time of a block."""
    process = Process(*arguments)
    try:
        yield process
    finally:
        process.close()


@pytest.fixture
def name_server() -> Iterator[str]:
    """The address of a name server."""
    with running("name-server", "--port", "0", "--listen", "127.0.0.1") as process:
        yield process.wait_for(r"name server (\S+)")[1]


def family(name_server: str, store: Path, count: int) -> tuple[str, ...]:
    """The command of a family of brokers `f-0`, `f-1`, ... on free ports."""
    return (
        *("broker", "-n", name_server, "--listen", "127.0.0.1", "--port", "0"),
        *("--store", str(store), *SMALL, "--set", "brokerName=f", "--processes", str(count)),
    )


def run(*arguments: str, name_server: str = "") -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, "NAMESRV_ADDR": name_server},
    )


def test_clients_see_all_brokers_and_a_killed_one_comes_back(
    name_server: str, tmp_path: Path
) -> None:
    """Two brokers, messages on both; kill -9 of one; it is back with them; SIGTERM ends all."""
    with running(*family(name_server, tmp_path, 2)) as process:
        ready = process.wait_for(r"ready in .*2 processes, brokers (\S+) (\S+), store")
        assert ready[1] != ready[2]
        created = run("topic", "create", "T", "--queues", "2", name_server=name_server)
        assert created.returncode == 0, created.stderr
        route = run("topic", "route", "T", name_server=name_server)
        assert {"f-0", "f-1"} <= set(re.findall(r"f-\d", route.stdout)), route.stdout
        lines = [f"message {number}" for number in range(40)]
        (tmp_path / "lines").write_text("\n".join(lines) + "\n")
        sent = run("produce", "T", "--file", str(tmp_path / "lines"), name_server=name_server)
        assert sent.returncode == 0, sent.stderr
        assert {path.name for path in tmp_path.glob("f-*")} == {"f-0", "f-1"}

        before = process.children()
        os.kill(before["f-1"], signal.SIGKILL)
        process.wait_for(r"f-1 was ended by signal 9 \(SIGKILL\); starting it again in 0\.25 s")
        assert process.wait_for(r"f-1 serves again on (\S+)")[1] == ready[2]
        after = process.children()
        assert after["f-0"] == before["f-0"]
        assert after["f-1"] != before["f-1"]
        read = run("consume", "T", "--from", "first", "--until-end", name_server=name_server)
        assert sorted(read.stdout.splitlines()) == sorted(lines)

        process.popen.terminate()
        assert process.popen.wait(60) == 0
        assert not any(psutil.pid_exists(pid) for pid in after.values())
        assert not list(tmp_path.glob("f-*/abort"))

    fewer = run(*family(name_server, tmp_path, 1))
    assert fewer.returncode == 2
    assert "--processes 1 would leave the messages of f-1 unserved" in fewer.stderr
    assert "--processes 2" in fewer.stderr
    assert "wipeWritePerm -b f-1" in fewer.stderr


def test_a_supervisor_killed_takes_its_brokers_along(name_server: str, tmp_path: Path) -> None:
    """When the supervisor is killed, its brokers stop as on a signal and free ports and stores."""
    with running(*family(name_server, tmp_path, 1)) as process:
        process.wait_for(r"1 process, brokers \S+, store")
        (child,) = process.children().values()
        process.popen.kill()
        deadline = time.monotonic() + WAIT_S
        while psutil.pid_exists(child) and time.monotonic() < deadline:
            time.sleep(0.05)
        assert not psutil.pid_exists(child)
    assert not (tmp_path / "f-0" / "abort").exists()


def test_a_start_that_fails_is_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    """If another process has a store, the family does not start and names that process."""
    with running("up", "--name-server-port", "0", "--broker-port", "0", *SMALL,
                 "--store", str(tmp_path / "f-1")) as holder:  # fmt: skip
        name_server = holder.wait_for(r"name server (\S+),")[1]
        failed = run(*family(name_server, tmp_path, 2))
    assert failed.returncode == 5, failed.stderr
    assert re.search(r"f-1 ended with code 5 before it served: .*in use by process", failed.stderr)
    assert failed.stdout == ""


def written(store: Path) -> None:
    """Make a store directory with a commit log that is not empty."""
    (store / "commitlog").mkdir(parents=True)
    (store / "commitlog" / "00000000000000000000").write_bytes(b"\0\0\1\0" + bytes(100))


def test_messages_that_would_be_left_unserved_are_a_reason_not_to_start(tmp_path: Path) -> None:
    """A plain broker's store is refused; empty stores and those of other families are not."""
    (tmp_path / "f-7" / "commitlog").mkdir(parents=True)
    (tmp_path / "f-7" / "commitlog" / "00000000000000000000").write_bytes(bytes(100))
    written(tmp_path / "other-5")
    written(tmp_path / "f-2")
    check_stores(str(tmp_path), "f", 3)
    with pytest.raises(ConfigError, match=r"of f-2 unserved.*--processes 3,"):
        check_stores(str(tmp_path), "f", 1)
    written(tmp_path)
    with pytest.raises(ConfigError, match="started without --processes"):
        check_stores(str(tmp_path), "f", 3)
    check_stores(str(tmp_path / "nowhere"), "f", 3)
