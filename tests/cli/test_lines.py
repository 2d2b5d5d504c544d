"""Lines from slow sources, and signals and readers that end a command meanwhile."""

import asyncio
import io
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import click
import pytest

from cometmq.cli.terminal import lines
from cometmq.cli.terminal.lines import line_batches
from cometmq.testing.cluster import threaded_cluster

CONTENTS = [
    (b"", []),
    (b"\n\r\n\n", []),
    (b"one", [b"one"]),
    (b"one\ntwo\r\n\nthree", [b"one", b"two", b"three"]),
    (b"\r\x00\xff\n \n", [b"\r\x00\xff", b" "]),
    (b"a" * 300_000 + b"\nb\n", [b"a" * 300_000, b"b"]),
]


async def _all(stream: BinaryIO) -> list[bytes]:
    return [line async for batch in line_batches(stream) for line in batch]


@pytest.mark.parametrize(("content", "expected"), CONTENTS)
def test_lines_of_a_file(tmp_path: Path, content: bytes, expected: list[bytes]) -> None:
    """Line ends of both kinds go, empty lines too; the last line needs no end."""
    path = tmp_path / "lines"
    path.write_bytes(content)
    with path.open("rb") as stream:
        assert asyncio.run(_all(cast("BinaryIO", stream))) == expected
    assert asyncio.run(_all(io.BytesIO(content))) == expected


@pytest.mark.parametrize(("content", "expected"), CONTENTS)
@pytest.mark.parametrize("piece_bytes", [7, 50_000])
def test_lines_of_a_pipe(content: bytes, expected: list[bytes], piece_bytes: int) -> None:
    """The same, wherever the pieces of a pipe are cut."""

    def feed(descriptor: int) -> None:
        with os.fdopen(descriptor, "wb", buffering=0) as sink:
            for start in range(0, len(content), piece_bytes):
                sink.write(content[start : start + piece_bytes])

    async def both() -> list[bytes]:
        source, sink = os.pipe()
        with os.fdopen(source, "rb") as stream:
            found, _ = await asyncio.gather(
                _all(cast("BinaryIO", stream)), asyncio.to_thread(feed, sink)
            )
        return found

    assert asyncio.run(both()) == expected


def test_a_line_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    """/dev/zero would otherwise fill the memory."""
    monkeypatch.setattr(lines, "LINE_BYTES_MAX", 1_000)
    assert asyncio.run(_all(io.BytesIO(b"a" * 1_000))) == [b"a" * 1_000]
    with pytest.raises(click.UsageError, match="1,000 bytes"):
        asyncio.run(_all(io.BytesIO(b"a" * 1_001)))


@pytest.fixture(scope="module")
def cluster() -> Iterator[dict[str, str]]:
    """An environment that names a running cluster."""
    with threaded_cluster() as running:
        yield {**os.environ, "NAMESRV_ADDR": running.name_server_address}


def cometmq(environment: dict[str, str], *arguments: str) -> str:
    """What a command prints that must succeed."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", *arguments],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    ).stdout


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_line_is_sent_before_the_next_comes(
    cluster: dict[str, str], number: signal.Signals, code: int
) -> None:
    """`tail -f log | cometmq produce`: each line at once; a signal is heard while it waits."""
    topic = f"Tail{number.name}"
    reading = ("consume", topic, "-g", f"{topic}-readers", "--from", "first", "--count", "1")
    cometmq(cluster, "topic", "create", topic, "--queues", "1")
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", "produce", topic, "--file", "-"],
        env=cluster,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        try:
            for line in ("one\n", "two\n"):
                process.stdin.write(line)
                process.stdin.flush()
                assert cometmq(cluster, *reading, "--wait", "20") == line
            process.send_signal(number)
            # Its stdin stays open: nothing but the signal ends it.
            assert process.wait(30) == code
            assert process.stderr is not None
            said = process.stderr.read()
        finally:
            process.kill()
    assert "ended early: 2 messages were sent, 0 on their way" in said
    assert "Traceback" not in said


def test_a_reader_that_goes_away_is_no_error(cluster: dict[str, str]) -> None:
    """`cometmq consume ... | head` ends in silence with 0, also in the midst of its output."""
    cometmq(cluster, "topic", "create", "Long", "--queues", "1")
    cometmq(cluster, "produce", "Long", "x" * 100_000, "--count", "5")
    command = f"{sys.executable} -m cometmq consume Long --from first --until-end"
    done = subprocess.run(
        ["sh", "-c", f"({command}; echo $? >&2) | head -c 1"],
        env=cluster,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.stdout, done.stderr) == ("x", "0\n")


TERMINATED_IN_A_CALLBACK = """
import asyncio, signal, socket, sys
from unittest.mock import patch
from cometmq.cli import main
from cometmq.net.loop import run

class Ending(asyncio.Protocol):
    def data_received(self, data):
        signal.raise_signal(signal.SIGTERM)

async def wait():
    near, far = socket.socketpair()
    far.sendall(b"x")
    await asyncio.get_running_loop().create_connection(Ending, sock=near)
    await asyncio.Event().wait()

signal.signal(signal.SIGINT, getattr(signal, sys.argv[1]))
with patch.object(main.root, "main", lambda *_, **__: run(wait())):
    main.main([])
"""


@pytest.mark.parametrize("interrupt", ["default_int_handler", "SIG_IGN"])
def test_sigterm_in_a_callback_ends_the_command(interrupt: str) -> None:
    """SIGTERM during a callback of the loop ends the command, not only the callback.

    A shell's background jobs begin with SIGINT ignored.
    """
    done = subprocess.run(
        [sys.executable, "-c", TERMINATED_IN_A_CALLBACK, interrupt],
        capture_output=True,
        text=True,
        timeout=30,
        check=False,
    )
    assert (done.returncode, done.stderr) == (143, "")
