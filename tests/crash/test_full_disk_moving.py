"""A disk that is full while retention appends again what waits in the file that is to go.

The file system is a real one of some megabytes, as in `test_full_disk`, under a real broker
process, which takes the last block itself at a named step of the move.  A tmpfs keeps what a killed
process wrote, as a page cache does.
"""

import os
import re
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.crash.stepping import Life, read_queue
from tests.crash.test_full_disk import DISK_BYTES, check_no_start, mounted
from tests.crash.test_full_disk_order import Filler
from tests.raw_client import RawClient
from tests.request_fields import send_fields

from cometmq.wire.command.command import RemotingCommand

pytestmark = [pytest.mark.processes, pytest.mark.timeout(180)]

TOPIC, PLAIN = "Later", "Plain"
WAIT_S = 60
LOG_FILE_BYTES = 1 << 20
BODY_BYTES = 12_000
SMALL_ROOM_BYTES = 750_000
"""Too little for a log file, enough for other files, and not above the watermark."""
TIMED, DELAYED, HALVES = 24, 20, 20
PENDING_BYTES = (TIMED + DELAYED + HALVES) * (BODY_BYTES + 1_000)
"""More than their records take."""
AHEAD_MS = 2 * 3_600_000
SETTINGS: dict[str, object] = {
    "defaultTopicQueueNums": 1,
    "messageDelayLevel": "1s 1h",
    "mappedFileSizeTimerLog": 1 << 16,
    "timerFlushIntervalMs": 200,
    "transactionTimeOut": AHEAD_MS * 2,
    # A file goes when it is old, at any hour, and never for want of space.
    "deleteWhen": ";".join(map(str, range(24))),
    "cleanResourceInterval": 100,
    "cleanFileForciblyEnable": False,
    # Else the broker refuses writes long before the last block is gone.
    "diskSpaceWarningLevelRatio": 99,
}
FILE_SIZES = (
    f"mappedFileSizeCommitLog={LOG_FILE_BYTES}",
    "mappedFileSizeConsumeQueue=10000",
    "maxHashSlotNum=1000",
    "maxIndexNum=4000",
)
"""Those of `stepping`, for a broker from the command line."""


def wait_until(is_so: Callable[[], bool], what: str) -> None:
    """Look again and again, for so long at most."""
    deadline = time.monotonic() + WAIT_S
    while not is_so():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def place_of(answer: RemotingCommand) -> int:
    """Physical offset of the record that a send was answered with."""
    return int(answer.ext_fields["msgId"][16:], 16)


class Shop:
    """What was acknowledged; it outlives the brokers."""

    def __init__(self, store: Path, flush: str) -> None:
        self.store = store
        self._settings = {**SETTINGS, "flushDiskType": flush}
        self.pending: set[bytes] = set()
        """Timed and delayed messages."""
        self.halves: dict[bytes, dict[str, str]] = {}
        """Half messages and what their end says, by their first places."""
        self.committed: set[bytes] = set()
        self.plain: list[bytes] = []
        self.first_plain_count = 0
        """Ordinary messages in the first file: they go with it."""

    def live(self, ahead_ms: int = 0) -> Life:
        """The next life of the broker."""
        return Life(self.store, "state.store.mover", self._settings, ahead_ms=ahead_ms)

    @property
    def first_file(self) -> Path:
        """The log file in which everything waits."""
        return self.store / "commitlog" / f"{0:020d}"

    def send(self, client: RawClient, body: bytes, raw: str, flag: int = 0) -> RemotingCommand:
        """One message that waits."""
        fields = send_fields(TOPIC, raw, f=str(flag))
        answer = client.call(310, fields, body + bytes(BODY_BYTES))
        assert answer.code == 0, f"{answer.code} {answer.remark}"
        return answer

    def store_pending(self, client: RawClient) -> None:
        """Messages of each kind, all of them in the first log file."""
        due_ms = time.time_ns() // 1_000_000 + 3_600_000  # noqa: TID251 - the broker's clock
        for number in range(TIMED):
            body = b"timed %d/" % number
            asked = f"TIMER_DELIVER_MS\x01{due_ms + number * 1_700}\x02"
            self.send(client, body, f"UNIQ_KEY\x01T{number}\x02{asked}")
            self.pending.add(body)
        for number in range(DELAYED):
            body = b"delayed %d/" % number
            self.send(client, body, f"UNIQ_KEY\x01D{number}\x02DELAY\x012\x02")
            self.pending.add(body)
        for number in range(HALVES):
            body, key = b"half %d/" % number, f"H{number}"
            raw = f"UNIQ_KEY\x01{key}\x02TRAN_MSG\x01true\x02PGROUP\x01p\x02"
            answer = self.send(client, body, raw, 4)
            self.halves[body] = {
                "producerGroup": "p",
                "tranStateTableOffset": answer.ext_fields["queueOffset"],
                "commitLogOffset": str(place_of(answer)),
                "msgId": key,
                "transactionId": key,
                "fromTransactionCheck": "false",
                "commitOrRollback": "8",
            }
            assert place_of(answer) < LOG_FILE_BYTES - BODY_BYTES * 2

    def send_plain(self, client: RawClient, body_bytes: int) -> RemotingCommand:
        """An ordinary message; the answer may be a refusal."""
        body = (b"%d/" % len(self.plain)).ljust(body_bytes, b".")
        answer = client.call(310, send_fields(PLAIN), body)
        if answer.code == 0:
            self.plain.append(body)
        return answer

    def fill_log(self, client: RawClient, left_bytes: int) -> None:
        """Ordinary messages until the log has so little room, and no file after it."""
        next_file = self.store / "cometmq.next"
        place, room = 0, LOG_FILE_BYTES
        while place < LOG_FILE_BYTES or next_file.exists() or room > left_bytes:
            answer = self.send_plain(client, 4_000)
            assert answer.code == 0, f"{answer.code} {answer.remark}"
            place = place_of(answer)
            self.first_plain_count += place < LOG_FILE_BYTES
            room = LOG_FILE_BYTES - place % LOG_FILE_BYTES - 4_200
        # Neither is one made now: it would be there for the move.
        assert room > left_bytes - 10_000

    def let_first_file_go(self) -> None:
        """It is old now; the others stay."""
        days_ago = time.clock_gettime(time.CLOCK_REALTIME) - 30 * 86_400
        os.utime(self.first_file, (days_ago, days_ago))

    def check_refused(self, client: RawClient, *kept_by: str) -> None:
        """Cause and remedy, also for what would still fit."""
        remark = ""

        def is_refused() -> bool:
            nonlocal remark
            answer = self.send_plain(client, 10)
            remark = answer.remark or ""
            assert answer.code in {0, 14}, f"{answer.code} {remark}"
            return answer.code == 14 and "cannot be appended again" in remark

        wait_until(is_refused, f"not refused, at last: {remark}")
        for text in (str(self.first_file), "is to go and stays", *kept_by):
            assert text in remark, remark
        assert re.search("[Nn]o space", remark), remark
        assert re.search("free space on this file system", remark), remark
        assert re.search(rf"\d+ of {DISK_BYTES >> 20} MiB are free", remark), remark

    def check_plain(self, client: RawClient) -> None:
        """Every ordinary message is there whose file is."""
        first = 0 if self.first_file.exists() else self.first_plain_count
        bodies = [bytes(one.body) for one in read_queue(client, PLAIN, 0, first)]
        assert bodies == self.plain[first:]

    def check_readable(self, client: RawClient) -> None:
        """Every ordinary message is there, and nothing that is not due."""
        self.check_plain(client)
        due = {body for body in self.delivered(client) if body not in self.committed}
        assert not due, f"delivered too early: {due}"

    def delivered(self, client: RawClient) -> Counter[bytes]:
        """What readers see of what waited, without the filling; each once."""
        found = Counter(
            bytes(one.body).removesuffix(bytes(BODY_BYTES)) for one in read_queue(client, TOPIC, 0)
        )
        assert all(many == 1 for many in found.values()), f"twice: {found}"
        return found

    def commit(self, client: RawClient, bodies: list[bytes]) -> None:
        """END_TRANSACTION for some half messages."""
        for body in bodies:
            answer = client.call(37, self.halves[body])
            assert answer.code == 0, f"{answer.code} {answer.remark}"
            self.committed.add(body)

    def settle(self) -> None:
        """Everything is due in this life, and arrives once."""
        life = self.live(AHEAD_MS)
        try:
            with RawClient(life.address, timeout_s=WAIT_S) as client:
                self.commit(client, [body for body in self.halves if body not in self.committed])
                owed = self.pending | self.halves.keys()
                wait_until(
                    lambda: owed <= self.delivered(client).keys(),
                    "some of what waited never arrived",
                )
                # What is due later arrives later, so nothing of what waited is still to come.
                due_ms = time.time_ns() // 1_000_000 + AHEAD_MS + 1_500  # noqa: TID251
                last = {b"last timed/": f"TIMER_DELIVER_MS\x01{due_ms}\x02"}
                last[b"last delayed/"] = "DELAY\x011\x02"
                for body, raw in last.items():
                    self.send(client, body, raw)
                wait_until(
                    lambda: last.keys() <= self.delivered(client).keys(), "the last never arrived"
                )
                assert self.delivered(client).keys() == owed | last.keys()
                self.check_plain(client)
        finally:
            life.close()


def full_at(shop: Shop, life: Life, client: RawClient, step: str, hit: int, room: int) -> None:
    """Let the disk be full at a step of the move, with room for so many messages in the log."""
    shop.store_pending(client)
    # No room for a log file, but for small ones.
    Filler(shop.store.parent).leave(SMALL_ROOM_BYTES)
    shop.fill_log(client, room * BODY_BYTES)
    life.arm(step, hit, "fill")
    shop.let_first_file_go()
    wait_until(lambda: life.has_hit, f"it never came to {step}")


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize(
    ("step", "hit", "room", "kept_by"),
    [
        pytest.param("retention.found", 1, 10, "(0 were): replacing", id="at the mark"),
        pytest.param("retention.prepared", 1, 10, "(0 were): reserving", id="at timers"),
        pytest.param(
            "retention.put", TIMED + 1, 35, f"({TIMED} were): reserving", id="at delay levels"
        ),
        pytest.param(
            "retention.portion", 2, 52, f"({TIMED + DELAYED} were): reserving", id="at halves"
        ),
    ],
)
def test_the_file_stays_until_there_is_room(
    tmp_path: Path, step: str, hit: int, room: int, kept_by: str, flush: str
) -> None:
    """Also over a kill on the full disk; everything that waits arrives once."""
    with mounted(tmp_path / "disk") as disk:
        filler = Filler(disk)
        shop = Shop(disk / "store", flush)
        life = shop.live()
        try:
            with RawClient(life.address, timeout_s=WAIT_S) as client:
                full_at(shop, life, client, step, hit, room)
                shop.check_refused(client, f"{TIMED} timed messages", kept_by)
                assert shop.first_file.exists()
                shop.check_readable(client)
            life.kill()
            filler.fill()
            check_no_start(shop.store, FILE_SIZES)
            # A start needs some blocks; a log file does not fit into them.
            filler.leave(SMALL_ROOM_BYTES)
            life = shop.live()
            with RawClient(life.address, timeout_s=WAIT_S) as client:
                shop.check_readable(client)
                shop.check_refused(client, "reserving")
                assert shop.first_file.exists()
                shop.check_readable(client)
                filler.empty()
                wait_until(lambda: not shop.first_file.exists(), "the file never went")
                wait_until(
                    lambda: shop.send_plain(client, 10).code == 0, "writes are refused for ever"
                )
                shop.commit(client, list(shop.halves)[::2])
            life.kill()
        finally:
            life.close()
        shop.settle()


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
def test_the_file_goes_when_all_was_appended(tmp_path: Path, flush: str) -> None:
    """Though no other file took anything any more, and the process is killed like that."""
    with mounted(tmp_path / "disk") as disk:
        shop = Shop(disk / "store", flush)
        life = shop.live()
        try:
            with RawClient(life.address, timeout_s=WAIT_S) as client:
                full_at(shop, life, client, "retention.appended", 1, PENDING_BYTES // BODY_BYTES)
                wait_until(lambda: not shop.first_file.exists(), "the file never went")
                shop.check_readable(client)
            life.kill()
        finally:
            life.close()
        Filler(disk).empty()
        shop.settle()
