"""The commands that serve, as processes: one ready line, graceful stops, clear refusals."""

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytestmark = pytest.mark.processes

UP = ("up", "--name-server-port", "0", "--broker-port", "0")
#: As RocketMQ ships it in conf/broker.conf (Apache-2.0): names and values are facts of the format.
JAVA_BROKER_CONF = """\
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""


@contextmanager
def serving(
    *arguments: str, environment: dict[str, str] | None = None
) -> Iterator[tuple["subprocess.Popen[str]", str]]:
    """`cometmq ARGUMENTS` and its ready line; killed at the end if it still runs."""
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            ready = process.stdout.readline()
            if not ready:
                pytest.fail(process.stderr.read())
            yield process, ready
        finally:
            process.kill()


def run(*arguments: str, name_server: str = "") -> subprocess.CompletedProcess[str]:
    """A command that ends by itself."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", *arguments],
        capture_output=True,
        text=True,
        timeout=40,
        check=False,
        env={**os.environ, "NAMESRV_ADDR": name_server},
    )


def address(kind: str, ready: str) -> str:
    """The `host:port` after ``kind`` in a ready line."""
    match = re.search(rf"{kind} ([\w.]+:\d+)", ready)
    assert match is not None, ready
    return match[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_up_says_ready_and_stops_gracefully(tmp_path: Path, number: signal.Signals) -> None:
    """One line when ready; a signal ends it with 0, without the abort file of a crash."""
    store = tmp_path / "store"
    with serving(*UP, "--store", str(store)) as (process, ready):
        assert re.match(
            r"cometmq up: ready in \d+\.\d\d s, name server 127\.0\.0\.1:\d+, "
            rf"broker 127\.0\.0\.1:\d+, store {re.escape(str(store))}\n$",
            ready,
        )
        assert (store / "abort").exists()
        sent = run("produce", "T", "x", name_server=address("name server", ready))
        assert sent.returncode == 0, sent.stderr
        process.send_signal(number)
        assert process.wait(20) == 0
        # A topic made by a typing error was made without a word.
        assert process.stderr is not None
        assert "topic T did not exist and was made with 4 queues" in process.stderr.read()
    assert not (store / "abort").exists()


@pytest.mark.parametrize("command", [UP, ("broker", "--port", "0"), ("name-server", "--port", "0")])
def test_protection_that_does_not_exist_ends_the_start(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    """Exit code 2 and one line; ``--insecure`` starts nevertheless and says so."""
    key, value = "tls.test.mode.enable", "true"
    if command[0] != "name-server":
        command = (*command, "--store", str(tmp_path / "store"), "--listen", "127.0.0.1")
    refused = run(*command, "--set", f"{key}={value}")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert refused.stderr.startswith(f"cometmq: {key}={value} (--set) cannot be served: ")
    assert refused.stderr.endswith("or start with --insecure\n")
    assert refused.stderr.count("\n") == 1
    with serving(*command, "--set", f"{key}={value}", "--insecure") as (process, _):
        process.terminate()
        _, log = process.communicate(timeout=20)
    assert f"started --insecure, open to everybody who reaches it, without: {key}={value}" in log
    assert process.returncode == 0


def test_messages_outlive_a_restart(tmp_path: Path) -> None:
    """What the first run stored, the second serves."""
    store = str(tmp_path / "store")
    for number in range(2):
        with serving(*UP, "--store", store) as (process, ready):
            name_server = address("name server", ready)
            sent = run("produce", "T", f"message {number}", name_server=name_server)
            assert sent.returncode == 0, sent.stderr
            read = run("consume", "T", "--from", "first", "--until-end", name_server=name_server)
            assert sorted(read.stdout.splitlines()) == [
                f"message {seen}" for seen in range(number + 1)
            ]
            process.terminate()
            assert process.wait(20) == 0


def disk_bytes(folder: Path) -> int:
    """The bytes of disk that a directory takes, as `du` counts them."""
    return sum(path.stat().st_blocks * 512 for path in folder.rglob("*") if path.is_file())


def test_two_bytes_do_not_take_a_gigabyte_of_disk(tmp_path: Path) -> None:
    """ "Two bytes take 1.1 GB of disk": `up` makes small files, and an explicit size still wins."""
    store = tmp_path / "store"
    for setting, least, most in (
        ((), 64, 66),
        (("--set", "mappedFileSizeCommitLog=8388608"), 8, 10),
    ):
        with serving(*UP, "--store", str(store), *setting) as (process, ready):
            name_server = address("name server", ready)
            assert run("produce", "T", "ab", "--key", "k", name_server=name_server).returncode == 0
            process.terminate()
            assert process.wait(20) == 0
        assert least << 20 <= disk_bytes(store) <= most << 20
        store = tmp_path / "other"


def test_a_broker_serves_the_store_of_up_without_a_size(tmp_path: Path) -> None:
    """`broker` makes files of 1 GiB, goes on with the 64 MiB of an existing store, and says so."""
    store = tmp_path / "store"
    with serving(*UP, "--store", str(store)) as (process, ready):
        name_server = address("name server", ready)
        assert run("produce", "T", "ab", name_server=name_server).returncode == 0
        process.terminate()
        assert process.wait(20) == 0
    log_file = store / "commitlog" / ("0" * 20)
    home = {"HOME": str(tmp_path)}
    names = ("name-server", "--listen", "127.0.0.1", "--port", "0")
    with serving(*names, environment=home) as (_, ready):
        name_server = address("name server", ready)
        broker = ("broker", "-n", name_server, "--listen", "127.0.0.1", "--port", "0")
        with serving(*broker, "--store", str(store)) as (process, _):
            read = run("consume", "T", "--from", "first", "--until-end", name_server=name_server)
            assert read.stdout == "ab\n"
            process.terminate()
            _, log = process.communicate(timeout=20)
    assert log.count("mappedFileSizeCommitLog") == 1
    assert (
        f"the files of {store}/commitlog have 67108864 bytes each, so that size holds and not"
        " mappedFileSizeCommitLog=1073741824: a store keeps the sizes it was made with"
    ) in log
    assert log_file.stat().st_size == 64 << 20


def test_up_follows_its_file_where_no_option_speaks(tmp_path: Path) -> None:
    """Port, address and name of the file; an option wins over it."""
    path = tmp_path / "broker.conf"
    with socket.socket() as probe:
        probe.bind(("127.0.0.2", 0))
        port = probe.getsockname()[1]
    path.write_text(f"brokerName=from-file\nlistenPort={port}\nbindAddress=127.0.0.2\n")
    arguments = ("up", "--name-server-port", "0", "--store", str(tmp_path / "s"), "-c", str(path))
    with serving(*arguments) as (_, ready):
        assert address("broker", ready) == f"127.0.0.2:{port}"
        name_server = address("name server", ready)
        assert name_server.startswith("127.0.0.2:")
        run("topic", "create", "T", name_server=name_server)
        listed = run("topic", "list", name_server=name_server)
        assert "from-file" in listed.stdout
    with serving(*arguments, "--broker-port", "0", "--listen", "127.0.0.1") as (_, ready):
        assert address("broker", ready) != f"127.0.0.1:{port}"
        assert address("broker", ready).startswith("127.0.0.1:")


def test_recovery_in_javas_way_says_what_it_took(tmp_path: Path) -> None:
    """After a kill without our side file, one line reports the way, reason, time and size."""
    store = tmp_path / "store"
    with serving(*UP, "--store", str(store)) as (process, ready):
        name_server = address("name server", ready)
        assert run("produce", "T", "x", "--count", "30", name_server=name_server).returncode == 0
        process.kill()
        process.wait(20)
    (store / "cometmq.checkpoint").unlink()
    with serving(*UP, "--store", str(store)) as (process, _):
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        said = process.stderr.read()
    assert re.search(r"store recovered in \d+\.\d\d s, abnormal \(.+\): 30 records", said), said
    with serving("-q", *UP, "--store", str(store)) as (process, _):
        process.terminate()
        assert process.wait(20) == 0
        assert process.stderr is not None
        assert process.stderr.read() == ""


def test_second_start_on_a_store_is_refused(tmp_path: Path) -> None:
    """The message names the process that holds the store."""
    store = str(tmp_path / "store")
    with serving(*UP, "--store", store) as (process, _):
        second = run(*UP, "--store", store)
        assert second.returncode == 5
        assert str(process.pid) in second.stderr
        assert len(second.stderr.strip().splitlines()) == 1


def test_roles_in_processes_of_their_own(tmp_path: Path) -> None:
    """name-server and broker find each other by NAMESRV_ADDR; Java's broker.conf is served."""
    conf = tmp_path / "broker.conf"
    conf.write_text(JAVA_BROKER_CONF + "sendMessageThreadPoolNums=16\n", encoding="utf-8")
    home = {"HOME": str(tmp_path)}
    with serving("name-server", "--port", "0", "--listen", "127.0.0.1", environment=home) as (
        _,
        first,
    ):
        name_server = address("name server", first)
        with serving(
            "broker",
            *("-c", str(conf), "--port", "0", "--store", str(tmp_path / "store")),
            *("--set", "brokerIP1=127.0.0.1"),
            environment={**home, "NAMESRV_ADDR": name_server},
        ) as (process, _):
            route = run("topic", "list", "--all", "--json", name_server=name_server)
            assert '"broker-a"' in route.stdout
            assert run("produce", "T", "x", name_server=name_server).returncode == 0
            process.terminate()
            assert process.wait(20) == 0
            assert process.stderr is not None
            assert "sendMessageThreadPoolNums" in process.stderr.read()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--set", "flushDiskTyp=SYNC_FLUSH"), ("flushDiskTyp", "flushDiskType")),
        (("--set", "flushDiskType=NEVER"), ("flushDiskType", "NEVER", "SYNC_FLUSH")),
        (("--set", "maxMessageSize=-1"), ("maxMessageSize", "-1", "16777216")),
        (("--set", "listenPort"), ("listenPort", "key=value")),
        (("-c", "no-such.conf"), ("no-such.conf",)),
    ],
)
def test_wrong_configuration_is_refused(arguments: tuple[str, ...], words: tuple[str, ...]) -> None:
    """Key, value and accepted range in one line, exit code 2, nothing started."""
    result = run(*UP, *arguments)
    assert result.returncode == 2
    assert all(word in result.stderr for word in words), result.stderr
    assert result.stdout == ""
    assert len(result.stderr.strip().splitlines()) == 1


def test_taken_port_is_named(tmp_path: Path) -> None:
    """The error names the port that is in use."""
    with serving(*UP, "--store", str(tmp_path / "a")) as (_, ready):
        port = address("broker", ready).rpartition(":")[2]
        second = run(
            *("up", "--name-server-port", "0", "--broker-port", port),
            *("--store", str(tmp_path / "b")),
        )
    assert second.returncode == 3
    assert port in second.stderr
    assert len(second.stderr.strip().splitlines()) == 1


def test_address_of_another_machine_is_named(tmp_path: Path) -> None:
    """The error names the address; it does not suggest another port."""
    result = run(*UP, "--store", str(tmp_path / "a"), "--listen", "192.0.2.77")
    assert result.returncode == 3
    assert "192.0.2.77" in result.stderr
    assert "choose an address of this machine" in result.stderr


def test_store_that_is_no_directory_is_one_line(tmp_path: Path) -> None:
    """The path, the cause and the next step, with the store's exit code."""
    path = tmp_path / "file"
    path.write_text("not a store")
    result = run(*UP, "--store", str(path))
    assert result.returncode == 5
    assert str(path) in result.stderr
    assert "--store" in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1


@pytest.mark.skipif(not Path("/proc/self/limits").exists(), reason="needs /proc")
def test_a_server_may_open_as_many_files_as_the_system_lets_it(tmp_path: Path) -> None:
    """A server raises the soft limit of open files, so that a thousand clients can connect."""
    script = 'ulimit -Sn 200; exec "$0" -m cometmq "$@"'
    with subprocess.Popen(
        ["/bin/sh", "-c", script, sys.executable, *UP, "--store", str(tmp_path / "s")],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            assert "ready in" in process.stdout.readline()
            limits = Path(f"/proc/{process.pid}/limits").read_text()
        finally:
            process.terminate()
    soft, hard = re.findall(r"Max open files +(\S+) +(\S+)", limits)[0]
    assert soft == hard
