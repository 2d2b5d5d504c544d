"""The replay accepts a server that repeats the captured answers and sees each spoilt one."""

import asyncio
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from tests.golden.replay import replay as module
from tests.golden.replay.captures import Line, Scenario, load_scenario
from tests.golden.replay.cluster import BARRIER_CODE, ReplayClock
from tests.golden.replay.frames import Frame, decode_frame, encode_frame
from tests.golden.replay.replay import Counts
from tests.golden.replay.table import Row, Table
from tests.golden.replay.translate import Translation


class Parrot:
    """Repeats a capture: each answer to its request, and each call when the capture has it."""

    def __init__(self, scenario: Scenario, spoil: Callable[[Line], bytes]) -> None:
        self._scenario = scenario
        self._spoil = spoil
        self._writers: dict[int, asyncio.StreamWriter] = {}
        self._told: set[int] = set()
        self.all_writers: list[asyncio.StreamWriter] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Serve one connection, which its first frame identifies."""
        connection = None
        self.all_writers.append(writer)
        try:
            while True:
                head = await reader.readexactly(4)
                frame = decode_frame(head + await reader.readexactly(int.from_bytes(head, "big")))
                if frame.opaque < 0:
                    code = 3 if frame.code == BARRIER_CODE else 0
                    answer = Frame(code, frame.opaque, 1, "JAVA", 493, None, {}, b"")
                    writer.write(encode_frame(answer))
                    continue
                line = self._find(frame, connection)
                if line is None:
                    continue
                connection = line.connection
                self._writers[connection] = writer
                self._tell(line)
        except asyncio.IncompleteReadError:
            writer.close()

    def _find(self, frame: Frame, connection: int | None) -> Line | None:
        for line in self._scenario.lines:
            same = line.is_request and line.from_client and line.frame.opaque == frame.opaque
            same = same and line.frame.code & 0xFFFF == frame.code & 0xFFFF
            if same and connection in {None, line.connection}:
                return line
        return None

    def _tell(self, asked: Line) -> None:
        """Write this request's answer and all other captured frames before the next request."""
        is_held = asked.code in module.PULLS and int(asked.frame.ext.get("sysFlag", "0")) & 2
        due = [] if asked.answer is None or is_held else [asked.answer]
        lines = self._scenario.lines
        for line in lines[lines.index(asked) + 1 :]:
            if line.from_client and line.is_request:
                break
            if not line.from_client:
                due.append(line)
        for line in due:
            if line.number not in self._told and line.connection in self._writers:
                self._told.add(line.number)
                self._writers[line.connection].write(self._spoil(line))


def play(name: str, spoil: Callable[[Line], bytes], monkeypatch: pytest.MonkeyPatch) -> Counts:
    """Run the replay against the parrot, with a table that only shortens holds."""
    scenario = load_scenario(name)
    monkeypatch.setattr(Translation, "same_client", lambda *_: True)
    monkeypatch.setattr(Translation, "address", lambda _, text: text)
    rows = [Row("*", "*", "request.*", "test"), Row("*", "*", "shared SCHEDULE_TOPIC_XXXX", "test")]
    table = Table(rows, [], {}, {})

    async def run() -> Counts:
        parrot = Parrot(scenario, spoil)
        servers = [await asyncio.start_server(parrot.serve, "127.0.0.1", 0) for _ in range(2)]
        ports = [f"127.0.0.1:{server.sockets[0].getsockname()[1]}" for server in servers]
        cluster: Any = SimpleNamespace(
            broker=SimpleNamespace(address=ports[0]),
            name_server=SimpleNamespace(address=ports[1]),
            chance=SimpleNamespace(),
        )
        player = module._Player(scenario, table, cluster, ReplayClock(scenario.epoch_ms))
        player._pairs.now_ms = lambda: 2**62
        await player.play()
        for server in servers:
            server.close()
        for writer in parrot.all_writers:
            writer.close()
        await asyncio.gather(*(writer.wait_closed() for writer in parrot.all_writers))
        await asyncio.sleep(0.01)
        return player.counts

    return asyncio.run(run())


NAMES = ("java-5.4.0/send", "java-5.4.0/errors", "go-2.1.2/send", "java-5.4.0/pull")


@pytest.mark.parametrize("name", NAMES)
def test_the_captured_answers_pass(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The replay accepts Java's own answers."""
    counts = play(name, lambda line: line.raw, monkeypatch)
    assert counts.unlisted == []
    assert counts.compared == sum(not line.from_client for line in load_scenario(name).lines)


def changed(number: int, change: Callable[[Frame], None]) -> Callable[[Line], bytes]:
    """Return the captured answers with one of them spoilt."""

    def spoil(line: Line) -> bytes:
        if line.number != number:
            return line.raw
        frame = decode_frame(line.raw)
        change(frame)
        return encode_frame(frame)

    return spoil


def set_ext(name: str, value: str) -> Callable[[Frame], None]:
    """Put another value into a field of the answer."""
    return lambda frame: frame.ext.__setitem__(name, value)


def set_byte(position: int) -> Callable[[Frame], None]:
    """Flip one bit of the body."""

    def change(frame: Frame) -> None:
        body = bytearray(frame.body)
        body[position] ^= 1
        frame.body = bytes(body)

    return change


SPOILT = {
    "code": ("java-5.4.0/send", 6, lambda frame: setattr(frame, "code", 1), "frame"),
    "queue": ("java-5.4.0/send", 6, set_ext("queueId", "3"), "ext.queueId"),
    "extra field": ("java-5.4.0/send", 6, set_ext("more", "1"), "ext.more"),
    "missing": ("java-5.4.0/send", 6, lambda frame: frame.ext.pop("TRACE_ON"), "ext.TRACE_ON"),
    "queue offset": ("java-5.4.0/send", 10, set_ext("queueOffset", "1"), "ext.queueOffset"),
    "same id twice": (
        "java-5.4.0/send",
        10,
        set_ext("msgId", "7F0000010000A0330000000000010CD8"),
        "ext.msgId",
    ),
    "version": ("java-5.4.0/send", 8, lambda frame: setattr(frame, "version", 1), "header.version"),
    "message body": ("java-5.4.0/pull", 27, set_byte(100), "body."),
    "message flag": ("java-5.4.0/pull", 27, set_byte(19), "body.flag"),
    "json": ("java-5.4.0/pull", 36, set_byte(25), "body.consumerIdList"),
    "next offset": ("java-5.4.0/pull", 27, set_ext("nextBeginOffset", "2"), "ext.nextBeginOffset"),
}


@pytest.mark.parametrize("case", SPOILT)
def test_one_spoilt_field_is_one_difference(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """One wrong field in one answer is reported with line, field and both values."""
    name, number, change, field = SPOILT[case]
    counts = play(name, changed(number, change), monkeypatch)
    assert [f": line {number} code " in text for text in counts.unlisted] == [True]
    assert field in counts.unlisted[0]


def test_table_rows_match_by_every_column() -> None:
    """A row applies to its captures, code, field, lines and property, and to nothing else."""
    row = Row("java-*/send", 310, "ext.*", "test", frozenset({6}), "DELAY")
    assert row.covers("java-5.4.0/send", 310, "ext.msgId", 6, {"DELAY", "KEYS"})
    assert not row.covers("go-2.1.2/send", 310, "ext.msgId", 6, {"DELAY"})
    assert not row.covers("java-5.4.0/send", 10, "ext.msgId", 6, {"DELAY"})
    assert not row.covers("java-5.4.0/send", 310, "body", 6, {"DELAY"})
    assert not row.covers("java-5.4.0/send", 310, "ext.msgId", 7, {"DELAY"})
    assert not row.covers("java-5.4.0/send", 310, "ext.msgId", 6)
