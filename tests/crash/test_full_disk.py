"""A real file system that is really full, under a real broker process.

A tmpfs of a few megabytes is mounted for it, which takes the right to mount; without it the tests
are skipped and say so.  A store into a page that has no block is SIGBUS, so what is proved here
is also that the process lives.
"""

import contextlib
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from tests.crash.test_kill9 import BrokerProcess
from tests.raw_client import RawClient
from tests.request_fields import pull_fields, send_fields

from cometmq.codec.stored_message import decode_messages

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

DISK_BYTES = 40 << 20
# Less than two log files of 2 MiB are left, so that the disk is full while one is written.
LEFT_BYTES = 7 << 20
TOPIC = "FullDisk"
BODY_BYTES = 8_000
SEND = send_fields(TOPIC)


@contextlib.contextmanager
def mounted(place: Path) -> Iterator[Path]:
    """A file system of its own; the test is skipped where none can be mounted."""
    place.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)]
    try:
        done = subprocess.run(mount, capture_output=True, text=True, check=False)
    except FileNotFoundError:
        pytest.skip("there is no mount command, so no small file system can be made")
    if done.returncode != 0:
        pytest.skip(f"no right to mount a small file system: {done.stderr.strip()}")
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", str(place)], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A small file system."""
    with mounted(tmp_path / "disk") as place:
        yield place


def read_all(client: RawClient) -> list[bytes]:
    """Every body of the queue, from the first on."""
    bodies: list[bytes] = []
    while True:
        answer = client.call(11, pull_fields(TOPIC, len(bodies)))
        if answer.code == 19:
            return bodies
        assert answer.code == 0, f"{answer.code} {answer.remark}"
        bodies += [bytes(message.body) for message in decode_messages(answer.body)]


@pytest.mark.parametrize(
    ("settings", "cause"),
    [
        pytest.param(["diskSpaceWarningLevelRatio=99"], r"[Nn]o space", id="no block left"),
        pytest.param(
            ["diskSpaceWarningLevelRatio=88", "cleanResourceInterval=100"],
            r"used to \d+ %, above 88 %|[Nn]o space",
            id="watermark",
        ),
    ],
)
@pytest.mark.parametrize("flush", ["ASYNC_FLUSH", "SYNC_FLUSH"])
def test_writes_are_refused_reads_go_on_and_service_returns(
    small_disk: Path, flush: str, settings: list[str], cause: str
) -> None:
    """Nothing acknowledged is lost, also when the process is killed on the full disk."""
    filler = small_disk / "filler"
    filler.write_bytes(bytes(DISK_BYTES - LEFT_BYTES))
    # Without this the oldest files would be given up to make room, as in RocketMQ.
    more = ["cleanFileForciblyEnable=false", *settings]
    stored: list[bytes] = []

    def send_until(client: RawClient, wanted: int, pause_s: float) -> str:
        """Send until an answer has this code; its remark."""
        for number in range(2_000):
            body = b"%d/%d" % (len(stored), number) + bytes(BODY_BYTES)
            answer = client.call(310, SEND, body)
            if answer.code == 0:
                stored.append(body)
            else:
                assert answer.code == 14, f"{answer.code} {answer.remark}"
            if answer.code == wanted:
                return answer.remark or ""
            time.sleep(pause_s)
        return pytest.fail(f"no answer {wanted}")

    broker = BrokerProcess(small_disk / "store", flush, more)
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        remark = send_until(client, 14, 0)
        assert re.search(cause, remark), remark
        assert re.search(r"\d+ of 40 MiB are free", remark), remark
        assert stored, "nothing was stored before the disk was full"
        assert read_all(client) == stored
        # Two seconds of a full disk: queues, index, offsets and side file fail to be written too.
        for _ in range(10):
            assert client.call(310, SEND, bytes(BODY_BYTES)).code == 14
            time.sleep(0.2)
        assert read_all(client) == stored
    broker.kill()
    broker = BrokerProcess(small_disk / "store", flush, more)
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        assert read_all(client) == stored
        send_until(client, 14, 0)
        filler.unlink()
        send_until(client, 0, 0.05)
        assert read_all(client) == stored
    assert broker.stop() == 0
    broker = BrokerProcess(small_disk / "store", flush, more)
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        assert read_all(client) == stored
    assert broker.stop() == 0


def check_no_start(store: Path, more: Sequence[str] = ()) -> None:
    """A start on a disk without a block left ends with cause and remedy."""
    broker = BrokerProcess(store, "ASYNC_FLUSH", more)
    assert broker.ended() == 5
    remedy = "No space left on device; make room on this file system, then start again"
    assert remedy in broker.log()


def test_a_first_start_without_a_block_left_says_what_to_do(small_disk: Path) -> None:
    """And leaves nothing that keeps a later one from starting."""
    store, filler = small_disk / "store", small_disk / "filler"
    store.mkdir()
    with contextlib.suppress(OSError), filler.open("ab", buffering=0) as file:
        while True:
            file.write(bytes(4096))
    check_no_start(store)
    filler.unlink()
    broker = BrokerProcess(store, "ASYNC_FLUSH")
    broker.wait_until_ready()
    with RawClient(broker.address) as client:
        assert client.call(310, SEND, b"taken").code == 0
    assert broker.stop() == 0
