"""The native core and the Python text give the same bytes: answers, log, queues and index."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import random
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tests.request_fields import LONG_NAMES, pull_fields, send_fields

from cometmq import native
from cometmq.broker import Broker, load_config
from cometmq.broker.transaction.content import cached_content
from cometmq.codec.batch import encode_batch
from cometmq.core.transaction.open_transactions import HalfMessage
from cometmq.model.topic import TopicConfig
from cometmq.net.env import Environment
from cometmq.net.network import TcpNetwork
from cometmq.store.base.disk import RealDisk
from cometmq.store.base.results import Copied
from cometmq.store.message_store import MessageStore
from cometmq.wire.command.command import RemotingCommand, encode_command

pytestmark = pytest.mark.skipif(
    native.SendEncoder is None, reason=f"there is nothing to compare: {native.describe()}"
)

LONG_TOPIC = "long-" * 26  # over 127 characters: its records have another form


class Clock:
    """A clock that a test moves."""

    now = 1_700_000_000_000

    def now_ms(self) -> int:
        return self.now

    def monotonic(self) -> float:
        return self.now / 1000


class Workers:
    """Workers whose work is done at once."""

    def submit(self, work: Callable[[], Any], done: Callable[[Any], None] | None = None) -> None:
        result: Any
        try:
            result = work()
        except Exception as error:
            result = error
        if done is not None:
            asyncio.get_running_loop().call_soon(done, result)

    def shutdown(self) -> None:
        """Nothing runs."""


@dataclasses.dataclass
class Port:
    port: int

    def close(self) -> None:
        """Nothing listens."""


class Network(TcpNetwork):
    """Keeps how a server accepts a connection."""

    accept: Callable[[], asyncio.Protocol]

    async def listen(self, host: str, port: int, accept: Callable[[], asyncio.Protocol]) -> Port:
        self.accept = accept
        return Port(port)


class Transport(asyncio.Transport):
    """Collects what is written."""

    def __init__(self) -> None:
        super().__init__({"peername": ("127.0.0.1", 40000)})
        self.data = b""
        self.is_closed = False

    def write(self, data: Any) -> None:
        self.data += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Nothing waits."""

    def get_write_buffer_size(self) -> int:
        return 0

    def close(self) -> None:
        self.is_closed = True

    abort = close


class Side:
    """One of the two brokers, without a socket."""

    def __init__(self, folder: Path, clock: Clock, flush: str) -> None:
        self.folder = folder
        self.network = Network()
        env = Environment(clock, random.Random(7), self.network, Workers())
        config = load_config(
            overrides={
                "listenPort": 10911,
                "brokerIP1": "127.0.0.1",
                "bindAddress": "127.0.0.1",
                "storePathRootDir": str(folder),
                "maxMessageSize": 300,
                "mappedFileSizeCommitLog": 1 << 16,
                "mappedFileSizeConsumeQueue": 20 * 100,
                "maxHashSlotNum": 50,
                "maxIndexNum": 400,
                "flushDiskType": flush,
            },
            environment={},
        ).config
        self.broker = Broker(config, env, RealDisk())

    @property
    def store(self) -> MessageStore:
        return self.broker.state.store

    async def start(self) -> None:
        await self.broker.start()
        state = self.broker.state
        assert self.broker._services is not None
        self.schedule = self.broker._services.schedule
        self.transactions = self.broker._services.transactions
        # A test says when messages are delivered.
        self.schedule._arm = lambda now_ms: None  # type: ignore[method-assign]
        self.transactions.ops._arm = lambda wait_ms: None  # type: ignore[method-assign]
        for topic in ("t", "u", LONG_TOPIC):
            config = TopicConfig(topic, 4, 4)
            state.topics.put(config, state.env.clock.now_ms())
            state.topic_changed(config)
        for _ in range(20):
            await asyncio.sleep(0)

    async def exchange(self, chunks: list[bytes]) -> bytes:
        """Give a new connection these reads; return all that it was sent."""
        transport = Transport()
        connection = self.network.accept()
        connection.connection_made(transport)
        for chunk in chunks:
            if not transport.is_closed:
                connection.data_received(chunk)  # type: ignore[attr-defined]
        for _ in range(20):
            await asyncio.sleep(0)
        connection.connection_lost(None)
        return transport.data

    async def deliver(self) -> None:
        """Deliver the delayed messages that are due."""
        self.schedule._tick()
        await asyncio.sleep(0)

    def queues(self) -> dict[tuple[str, int], tuple[int, int]]:
        """Of every queue where it ends, and up to where consumers see it.

        How much of it is in a file depends on a timer.
        """
        return {
            (queue.topic, queue.queue_id): (queue.max, queue.visible)
            for queues in self.store.queues_by_topic.values()
            for queue in queues.values()
        }

    def halves(self) -> list[HalfMessage]:
        """What is known of each half message."""
        halves = self.transactions.halves
        known = [half for offset in halves.offsets() if (half := halves.at(offset)) is not None]
        return [structs.replace(half, cached=cached_content(half)) for half in known]

    def files(self) -> dict[str, bytes]:
        """Log, queues and index, which have every byte of every message."""
        files = {
            str(path.relative_to(self.folder)): path.read_bytes()
            for root in ("commitlog", "consumequeue")
            for path in sorted((self.folder / root).rglob("*"))
            if path.is_file()
        }
        # The name of an index file is the time when it was made, which a timer decides.
        for number, path in enumerate(sorted((self.folder / "index").iterdir())):
            files[f"index {number}"] = path.read_bytes()
        return files


class Pair:
    """A broker with the native core and one without, which get the same bytes."""

    def __init__(self, folder: Path, flush: str) -> None:
        self.clock = Clock()
        self.runner = asyncio.Runner()
        self.fast = Side(folder / "native", self.clock, flush)
        self.pure = Side(folder / "pure", self.clock, flush)
        self.native_bytes = self.native_copies = 0

    def open(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.runner.run(self.fast.start())
        for name in ("SendEncoder", "CopyEncoder", "read_pull", "answer_pull", "gather_records"):
            monkeypatch.setattr(native, name, None)
        self.runner.run(self.pure.start())
        server = self.fast.broker._server
        front = server.front
        assert front is not None

        def counted(data: bytes, *how: Any) -> tuple[int, bytes]:
            end, answers = front(data, *how)
            self.native_bytes += end
            return end, answers

        server.front = counted
        append_copies = self.fast.store.append_copies

        def counted_copies(*how: Any, **named: Any) -> Copied:
            copied = append_copies(*how, **named)
            self.native_copies += copied.copy_count
            return copied

        monkeypatch.setattr(self.fast.store, "append_copies", counted_copies)
        assert self.pure.broker._server.front is None

    def exchange(self, chunks: list[bytes]) -> None:
        self.clock.now += 1
        fast = self.runner.run(self.fast.exchange(chunks))
        pure = self.runner.run(self.pure.exchange(chunks))
        assert fast == pure
        assert self.fast.store.max_physical_offset == self.pure.store.max_physical_offset
        assert self.fast.queues() == self.pure.queues()
        assert self.fast.halves() == self.pure.halves()

    def commit(self, kept_count: int = 0) -> None:
        """Commit all half messages but the last ones, in one read, and compare what is stored."""
        halves = self.fast.halves()
        frames = [
            end_frame(number, half)
            for number, half in enumerate(halves[: len(halves) - kept_count])
        ]
        self.exchange([b"".join(frames)])
        assert len(self.fast.halves()) == min(kept_count, len(halves))

    def deliver(self, after_ms: int) -> None:
        """Let time pass, and compare what is delivered."""
        self.clock.now += after_ms
        for side in (self.fast, self.pure):
            self.runner.run(side.deliver())
        assert self.fast.store.max_physical_offset == self.pure.store.max_physical_offset
        assert self.fast.queues() == self.pure.queues()

    def close(self) -> None:
        self.runner.run(self.fast.broker.stop())
        self.runner.run(self.pure.broker.stop())
        self.runner.close()
        fast, pure = self.fast.files(), self.pure.files()
        assert fast.keys() == pure.keys()
        assert [name for name in fast if fast[name] != pure[name]] == []


def end_frame(opaque: int, half: HalfMessage) -> bytes:
    """The commit of a half message, as Java's client writes it."""
    fields = {
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": "8",
        "fromTransactionCheck": "false",
        "msgId": half.uniq_key,
        "producerGroup": half.group,
        "tranStateTableOffset": str(half.queue_offset),
        "transactionId": half.uniq_key,
    }
    return json_frame({"code": 37, "extFields": fields, "flag": 0, "opaque": opaque}, b"")


@pytest.fixture(params=["ASYNC_FLUSH", "SYNC_FLUSH"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    with pytest.MonkeyPatch.context() as monkeypatch:
        pair = Pair(tmp_path, request.param)
        pair.open(monkeypatch)
        yield pair
        pair.close()


def json_frame(header: dict[str, Any], body: bytes, *, spaces: bool = False) -> bytes:
    separators = None if spaces else (",", ":")
    raw = json.dumps(header, separators=separators, ensure_ascii=False).encode()
    return struct.pack(">iI", 4 + len(raw) + len(body), len(raw)) + raw + body


IDS = st.sampled_from(["7F0000010001", "0A0B0C0D" * 4, "x", "id-1", "", "ü", "a\x01b", 'q"\\'])
TEXTS = st.sampled_from(
    ["", "A", "B", "a b", " x  y ", "TagA", "é", "\U0001f600", "\x00", "long" * 20]
)
ENTRIES = st.one_of(
    st.tuples(st.just("UNIQ_KEY"), IDS),
    st.tuples(st.just("KEYS"), TEXTS),
    st.tuples(st.just("TAGS"), TEXTS),
    st.tuples(st.just("WAIT"), st.sampled_from(["true", "false"])),
    st.tuples(
        st.sampled_from(
            ["MYKEYS", "MYTAGS", "AUNIQ_KEY", "own", "PGROUP", "TRAN_MSG", "POP_CK", "REAL_TOPIC",
             "INNER_NUM", "CLUSTER", "MSG_REGION"]
        ),
        st.sampled_from(["", "1", "true", "DELAY", "x"]),
    ),
    # Nothing that waits is due before the test is over.
    st.tuples(st.just("DELAY"), st.sampled_from(["", "9", "x"])),
    st.tuples(st.just("TIMER_DELAY_MS"), st.sampled_from(["", "9000000", "x"])),
    st.tuples(st.just("TIMER_DELIVER_MS"), st.sampled_from(["1700009000000", "x"])),
    st.tuples(
        st.just("PRODUCER_SEQ"),
        st.sampled_from(["p.1:1", "p.1:2", "p:01", "p:0", ":7", "p", "ü:3"]),
    ),
)  # fmt: skip


@st.composite
def properties(draw: st.DrawFn) -> str:
    """Mostly what clients write: KEYS, UNIQ_KEY, WAIT, TAGS and own ones."""
    text = "".join(f"{name}\x01{value}\x02" for name, value in draw(st.lists(ENTRIES, max_size=4)))
    number = draw(st.integers(0, 1 << 30))
    if draw(st.integers(0, 2)):
        text = f"KEYS\x01{number}\x02UNIQ_KEY\x01{number:032X}\x02TAGS\x01TagA\x02"
    elif draw(st.integers(0, 2)):
        text = f"UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02" + text
    return text[:-1] if draw(st.integers(0, 5)) == 0 else text


@st.composite
def plain_properties(draw: st.DrawFn) -> str:
    """What Java's client writes."""
    number = draw(st.integers(0, 1 << 30))
    keys = f"KEYS\x01{number} b\x02" if number % 3 else ""
    tags = f"TAGS\x01Tag{number % 5}\x02" if number % 7 else ""
    mark = draw(
        st.sampled_from(
            [
                *[""] * 5,
                f"DELAY\x01{number % 3 + 1}\x02",
                f"TIMER_DELIVER_MS\x01{1_700_009_000_000 + number % 5000}\x02",
                "TRAN_MSG\x01true\x02PGROUP\x01g\x02",
                *[f"PRODUCER_SEQ\x01p.{number % 2}:{number % 30 + 1}\x02"] * 2,
            ]
        )
    )
    return f"{keys}UNIQ_KEY\x01{number:032X}\x02WAIT\x01true\x02{tags}{mark}"


@st.composite
def batch_bodies(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> bytes:
    """Packed messages, now and then one that is not whole."""
    item = st.tuples(st.integers(-1, 3), st.binary(max_size=9), texts.map(str.encode))
    items = draw(st.lists(item, max_size=3))
    body = encode_batch(items)
    if draw(st.integers(0, 7)) == 0 and body:
        position = draw(st.integers(0, len(body) - 1))
        body = body[:position] + draw(st.binary(max_size=2)) + body[position + 1 :]
    return body


NUMBERS = st.one_of(
    st.integers(-2, 5).map(str),
    st.sampled_from(["007", "-0", "+1", " 1", "", "1e3", "9" * 18, "9" * 19, "-2147483648"]),
)


@st.composite
def sends(draw: st.DrawFn) -> bytes:
    """A send as any client may write it; every second one is plain."""
    is_odd = draw(st.booleans())
    topics = ["t"] * 8 + ["u", "u", LONG_TOPIC, "new", "bad topic", "%RETRY%g"]
    topic = draw(st.sampled_from(topics if is_odd else ["t", "u"]))
    body = draw(st.binary(max_size=40))
    if is_odd and draw(st.integers(0, 5)) == 0:
        body = b"x" * 301
    fields = send_fields(
        topic,
        draw(properties() if is_odd else plain_properties()),
        e=str(draw(st.integers(0, 3))),
        d="4",
    )
    header: dict[str, Any] = {"code": 310, "flag": 0, "opaque": draw(st.integers(0, 1 << 31))}
    if is_odd and draw(st.integers(0, 3)) == 0:
        fields[draw(st.sampled_from("efghjm"))] = draw(NUMBERS)
    if is_odd and draw(st.integers(0, 5)) == 0:
        fields[draw(st.sampled_from(["cmqGroup", "n", "l", "zz"]))] = draw(TEXTS)
    if is_odd and draw(st.integers(0, 9)) == 0:
        del fields[draw(st.sampled_from("befghijkm"))]
    if is_odd and draw(st.integers(0, 5)) == 0:
        header["flag"] = draw(st.sampled_from([1, 2, 3, 4, -1]))
    kind = draw(st.integers(0, 5))
    if kind == 1:
        header["code"] = 320
        fields["m"] = draw(st.sampled_from(["true", "true", "false"]))
        body = draw(batch_bodies(properties() if is_odd else plain_properties()))
    elif kind == 0:
        header["code"] = 10
        fields = {LONG_NAMES.get(name, name): value for name, value in fields.items()}
    if draw(st.integers(0, 2)) == 0:
        try:
            return encode_command(
                RemotingCommand(
                    header["code"], header["opaque"] & 0x7FFFFFFF, header["flag"], "JAVA", 493,
                    draw(st.sampled_from([None, "a remark"])), decoded_ext=fields, body=body,
                    serialize_type=1,
                )
            )  # fmt: skip
        except ValueError:
            return b""
    header["extFields"] = fields
    header["language"] = draw(st.sampled_from(["JAVA", "GO", "ü"]))
    header["version"] = 493
    if is_odd and draw(st.integers(0, 9)) == 0:
        header[draw(st.sampled_from(["remark", "body", "header", "-type", "x"]))] = draw(
            st.sampled_from([None, "AAAA", 1, True, 1.5, [], {"a": 1}])
        )
    keys = sorted(header) if draw(st.booleans()) else ["code", *sorted(set(header) - {"code"})]
    if is_odd and draw(st.integers(0, 9)) == 0:
        keys = draw(st.permutations(keys))
    ordered = {key: header[key] for key in keys}
    return json_frame(ordered, body, spaces=is_odd and draw(st.integers(0, 9)) == 0)


OTHERS = st.sampled_from(
    [
        encode_command(RemotingCommand.request(34, {}, b'{"clientID":"c","producerDataSet":[]}')),
        encode_command(RemotingCommand.request(30, {"topic": "t", "queueId": "0"})),
        encode_command(RemotingCommand.request(11, pull_fields("t", 0))),
        encode_command(RemotingCommand.request(9999)),
        b'\x00\x00\x00\x10\x00\x00\x00\x0c{"code":310}',
        b"\x00\x00\x00\x04\x00\x00\x00\x00",
        b"\x00\x00\x00\x05\x01\x00\x00\x01\x01",
    ]
)
#: Bytes after which a connection is over.
HOSTILE = st.one_of(st.binary(min_size=1, max_size=60), st.just(b"GET / HTTP/1.1\r\n\r\n"))


@st.composite
def reads(draw: st.DrawFn) -> list[bytes]:
    """What a socket gives, read by read: frames, cut anywhere."""
    frames = draw(st.lists(st.one_of(sends(), sends(), sends(), OTHERS), min_size=1, max_size=12))
    data = b"".join(frames)
    if draw(st.integers(0, 9)) == 0:
        data += draw(HOSTILE)
    cuts = sorted(draw(st.lists(st.integers(0, len(data)), max_size=3)))
    ends = [*cuts, len(data)]
    return [data[start:end] for start, end in zip([0, *cuts], ends, strict=True) if start < end]


def test_same_bytes_whatever_comes(pair: Pair) -> None:
    """Valid, odd and hostile frames in any cut: answers, log, queues and index are equal."""

    is_sync = pair.fast.store.config.is_sync_flush

    @settings(
        max_examples=40 if is_sync else 120,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(reads(), st.sampled_from([0, 0, 0, 700, 11_000]), st.integers(0, 9))
    def exchange(chunks: list[bytes], after_ms: int, kept_count: int) -> None:
        pair.exchange(chunks)
        if after_ms:
            pair.deliver(after_ms)
        if kept_count < 3:
            pair.commit(kept_count)

    # The first send of a topic goes through the checks.
    text = "UNIQ_KEY\x0112AB\x02"
    for topic in ("t", "u"):
        fields = send_fields(topic, text)
        pair.exchange([encode_command(RemotingCommand.request(310, fields, b"x"))])
    exchange()
    assert pair.native_bytes, "the core took nothing: nothing was compared"


def test_core_takes_every_plain_form(pair: Pair) -> None:
    """All codes, both encodings, any order of the keys, one-way ones: all of a read is native."""
    text = 'KEYS\x01k1 k2\x02UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02TAGS\x01A\x02own\x01"v\\\x02'
    frames = []
    for number in range(40):
        fields = send_fields("t", text.format(number), e=str(number % 4))
        code, flag, kind = (310, 10)[number % 2], (0, 2)[number // 2 % 2], number // 4 % 3
        if code == 10:
            fields = {LONG_NAMES[name]: value for name, value in fields.items()}
        if kind == 0:
            command = RemotingCommand.request(code, fields, b"body", serialize_type=1)
            command.flag, command.opaque = flag, number
            frames.append(encode_command(command))
            continue
        header = {"code": code, "extFields": fields, "flag": flag, "opaque": number}
        if kind == 1:
            header = {
                "code": code,
                "language": "GO",
                "opaque": number,
                "extFields": fields,
            } | header
        frames.append(json_frame(header, b"body"))
    items = [(number, b"x" * number, text.format(number).encode()) for number in range(2)]
    for ids in ("", "UNIQ_KEY\x0112AB"):
        for encoding in (0, 1):
            fields = send_fields("t", f"WAIT\x01true\x02{ids}", m="true")
            command = RemotingCommand.request(
                320, fields, encode_batch(items), serialize_type=encoding
            )
            frames.append(encode_command(command))
    header = {"extFields": fields, "code": 320, "flag": 0, "opaque": 7}
    frames.append(json_frame(header, encode_batch(items)))
    pair.exchange([frames[0]])  # the first send of a topic goes through the checks
    pair.exchange(
        [
            encode_command(RemotingCommand.request(310, send_fields("t", text, e=str(e)), b"x"))
            for e in range(4)
        ]
    )
    before = pair.native_bytes
    data = b"".join(frames)
    pair.exchange([data])
    assert pair.native_bytes - before == len(data)


def test_core_takes_delayed_messages_and_delivers_them(pair: Pair) -> None:
    """Of several levels, with the empty body last; only what is due is delivered."""
    text = "KEYS\x01k1 k2\x02UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02TAGS\x01A\x02DELAY\x01{}\x02"

    def frames(first: int, levels: list[int]) -> bytes:
        return b"".join(
            encode_command(
                RemotingCommand.request(
                    310, send_fields("t", text.format(first + number, level)), b"b" * (level - 1),
                    serialize_type=number % 2,
                )
            )
            for number, level in enumerate(levels)
        )  # fmt: skip

    pair.exchange([frames(0, [1, 2])])  # they make the queues
    pair.deliver(6_000)
    before = pair.native_bytes
    data = frames(2, [1, 2, 2, 1, 3, 1])
    pair.exchange([data])
    assert pair.native_bytes - before == len(data) - len(frames(6, [3, 1]))
    for after_ms, count in ((999, 0), (1, 3), (4_000, 2), (10_000, 1)):
        before = pair.native_copies
        pair.deliver(after_ms)
        assert pair.native_copies - before == count


def test_core_takes_timed_and_half_messages(pair: Pair) -> None:
    """With their recall handles, and with what a commit stores."""
    marks = ("TIMER_DELIVER_MS\x011700009000001\x02", "TRAN_MSG\x01true\x02PGROUP\x01p g\x02")
    frames = [
        encode_command(
            RemotingCommand.request(
                310,
                send_fields("t", f"UNIQ_KEY\x01{number:0{width}X}\x02{mark}TAGS\x01A\x02"),
                b"b" * (2 - number % 3),
                serialize_type=number % 2,
            )
        )
        for number, (width, mark) in enumerate(
            (width, mark) for width in (32, 31, 30) for mark in marks * 2
        )
    ]
    plain = send_fields("t", "UNIQ_KEY\x0112AB\x02")
    # They make the queues.
    for frame in (encode_command(RemotingCommand.request(310, plain, b"")), *frames[:2]):
        pair.exchange([frame])
    before = pair.native_bytes
    pair.exchange([b"".join(frames)])
    assert pair.native_bytes - before == sum(map(len, frames))
    assert pair.fast.halves()
    # Python has stored the first half message, and so it stores the commits of a run with it.
    for kept_count, native_count in ((5, 0), (1, 4)):
        copied = pair.native_copies
        pair.commit(kept_count)
        assert pair.native_copies - copied == native_count


def test_run_that_is_not_flushed(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the flush fails, each send and batch is answered FLUSH_DISK_TIMEOUT, in both ways."""
    text = "UNIQ_KEY\x01{:032X}\x02WAIT\x01true\x02"
    batch = encode_batch([(0, b"", text.format(9).encode())] * 2)
    frames = [
        encode_command(RemotingCommand.request(code, fields, body, serialize_type=encoding))
        for encoding in (0, 1)
        for code, fields, body in (
            (310, send_fields("t", text.format(encoding)), b"body"),
            (320, send_fields("t", "WAIT\x01true", m="true"), batch),
        )
    ]
    pair.exchange(frames[:1])
    failures = []
    for side in (pair.fast, pair.pure):

        def fail(end_offset: int, settle: Callable[[bool], None]) -> None:
            failures.append(end_offset)
            asyncio.get_running_loop().call_soon(settle, False)

        monkeypatch.setattr(side.store, "when_durable", fail)
    before = pair.native_bytes
    pair.exchange([b"".join(frames)])
    assert pair.native_bytes - before == sum(map(len, frames))
    is_sync = pair.fast.store.config.is_sync_flush
    assert bool(failures) == is_sync
