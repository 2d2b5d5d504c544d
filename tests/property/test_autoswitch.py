"""AutoSwitch without sockets: RocketMQ's captured streams, any log in any pieces, junk."""

from __future__ import annotations

from collections import defaultdict
from typing import Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.golden.wire.captures import load_autoswitch

from cometmq.broker.replication.autoswitch import (
    AutoSwitchMasterLink,
    AutoSwitchSlaveLink,
    encode_greeting,
)
from cometmq.codec.epoch_file import Epoch
from cometmq.core.replication.epochs import EpochList
from cometmq.errors import RemoteProtocolError

FILE_BYTES: Final = 4096
NO_TIME: Final = 0


def connections() -> dict[str, tuple[bytes, bytes]]:
    """By a name: what the slave and what the master sent in one captured connection."""
    streams: dict[int, list[bytes]] = defaultdict(lambda: [b"", b""])
    number = 0
    for _, is_from_master, frame in load_autoswitch():
        # A connection begins with the slave's handshake.
        if not is_from_master and frame[:4] == b"\0\0\0\1":
            number += 1
        streams[number][is_from_master] += frame
    return {str(number): (slave, master) for number, (slave, master) in streams.items()}


CONNECTIONS: Final = connections()


@pytest.mark.parametrize("name", CONNECTIONS)
def test_captured_streams_of_rocketmq_are_read(name: str) -> None:
    """Its slave's frames by our master's end, its master's by our slave's, byte by byte."""
    from_slave, from_master = CONNECTIONS[name]
    slave = AutoSwitchSlaveLink(NO_TIME)
    greeting, reports = from_slave[:16], from_slave[16:]
    bodies = b""
    for at in range(len(from_master)):
        if slave.epochs is not None and slave.expected < 0:
            slave.begin(int.from_bytes(reports[4:12], "big"))
        bodies += b"".join(slave.receive(from_master[at : at + 1], NO_TIME))
    assert slave.epochs is not None
    first = int.from_bytes(reports[4:12], "big")
    assert slave.expected == first + len(bodies)
    assert slave.confirmed <= slave.expected

    master = AutoSwitchMasterLink(1 << 20, 32768, NO_TIME, slave.epochs, lambda: slave.confirmed)
    master.receive(greeting, slave.expected, NO_TIME)
    assert master.broker_id in (1, 2)
    answer = master.take_answer()
    assert answer[:8] == from_master[:8]
    assert answer[16:] == from_master[16 : len(answer)]
    master.receive(reports[:12], slave.expected, NO_TIME)
    assert master.sent == first
    sent = b"".join(map(bytes, master.encode(memoryview(bodies), NO_TIME)))
    assert sent.endswith(bodies)
    for at in range(12, len(reports)):
        master.receive(reports[at : at + 1], slave.expected, NO_TIME)
    assert master.acknowledged == slave.expected


def test_heads_are_those_of_rocketmq() -> None:
    """A transfer of ours with the fields of a captured one has the same bytes."""
    compared = 0
    for _, from_master in CONNECTIONS.values():
        slave = AutoSwitchSlaveLink(NO_TIME)
        slave.receive(from_master[:20], NO_TIME)
        list_bytes = int.from_bytes(from_master[4:8], "big")
        slave.receive(from_master[20 : 20 + list_bytes], NO_TIME)
        assert slave.epochs is not None
        at = 20 + list_bytes
        while at < len(from_master):
            size = int.from_bytes(from_master[at + 4 : at + 8], "big")
            offset = int.from_bytes(from_master[at + 8 : at + 16], "big")
            confirmed = int.from_bytes(from_master[at + 28 : at + 36], "big")
            master = AutoSwitchMasterLink(
                1 << 20,
                32768,
                NO_TIME,
                slave.epochs,
                lambda confirmed=confirmed: confirmed,  # type: ignore[misc]
            )
            master.receive(encode_greeting(2), 0, NO_TIME)
            master.receive(b"\0\0\0\2" + offset.to_bytes(8, "big"), 0, NO_TIME)
            body = from_master[at + 36 : at + 36 + size]
            ours = (
                b"".join(map(bytes, master.encode(memoryview(body), NO_TIME)))
                if size
                else master.heartbeat(NO_TIME)
            )
            assert ours == from_master[at : at + 36 + size]
            at += 36 + size
            compared += 1
    assert compared > 30


@given(
    st.binary(min_size=1, max_size=20_000),
    st.lists(st.integers(1, 4000), max_size=4),
    st.integers(1, 5000),
    st.lists(st.integers(1, 7000), min_size=1, max_size=30),
    st.data(),
)
def test_a_log_arrives_over_any_epochs_and_pieces(
    log: bytes, lengths: list[int], batch: int, pieces: list[int], data: st.DataObject
) -> None:
    """From any physical offset on; no transfer crosses the end of a file or of an epoch."""
    epochs, start = EpochList(), 0
    for number, length in enumerate([*lengths, 0], start=1):
        if start < len(log):
            epochs = epochs.began(number, start)
        start += length
    begin = data.draw(st.integers(0, len(log)))
    master = AutoSwitchMasterLink(FILE_BYTES, batch, NO_TIME, epochs, lambda: 0)
    slave = AutoSwitchSlaveLink(NO_TIME)
    assert master.heartbeat(NO_TIME) == b""
    assert slave.report(0, NO_TIME, 0) == b""
    greeting = encode_greeting(7)
    master.receive(greeting[:9], len(log), NO_TIME)
    assert master.take_answer() == b""
    master.receive(greeting[9:] + greeting, len(log), NO_TIME)
    assert slave.receive(master.take_answer(), NO_TIME) == []
    assert slave.epochs is not None
    assert (slave.epochs.entries, slave.master_end) == (epochs.entries, len(log))
    slave.begin(begin)
    master.receive(slave.report(begin, NO_TIME, 0), len(log), NO_TIME)
    stream = b""
    while True:
        offset, size = master.next_span(len(log))
        if not size:
            break
        epoch = epochs.at(offset)
        assert epoch is not None
        assert offset + size <= (epoch[1] or len(log))
        assert offset // FILE_BYTES == (offset + size - 1) // FILE_BYTES
        stream += b"".join(map(bytes, master.encode(memoryview(log[offset : offset + size]), 1)))
    stream += master.heartbeat(NO_TIME)
    received, at, turn = b"", 0, 0
    while at < len(stream):
        step = pieces[turn % len(pieces)]
        received += b"".join(slave.receive(stream[at : at + step], NO_TIME))
        at, turn = at + step, turn + 1
    assert received == log[begin:]
    report = slave.report(len(log), NO_TIME, 1000)
    if begin < len(log):
        master.receive(report, len(log), NO_TIME)
    assert master.acknowledged == len(log)


def greeted() -> AutoSwitchMasterLink:
    """The master's end after a handshake of replica 2."""
    master = AutoSwitchMasterLink(FILE_BYTES, 100, NO_TIME, EpochList([Epoch(1, 0)]), lambda: 0)
    master.receive(encode_greeting(2), 50, NO_TIME)
    return master


def report(end: int) -> bytes:
    """A slave's report."""
    return b"\0\0\0\2" + end.to_bytes(8, "big", signed=True)


def test_reports_that_cannot_be_are_refused() -> None:
    """Before a handshake, beyond what was sent, negative, of another state."""
    fresh = AutoSwitchMasterLink(FILE_BYTES, 100, NO_TIME, EpochList(), lambda: 0)
    with pytest.raises(RemoteProtocolError, match="before the handshake"):
        fresh.receive(report(0), 50, NO_TIME)
    with pytest.raises(RemoteProtocolError, match="no log's end"):
        greeted().receive(report(-1), 50, NO_TIME)
    with pytest.raises(RemoteProtocolError, match="only 10 bytes"):
        greeted().receive(report(10) + report(11), 50, NO_TIME)
    with pytest.raises(RemoteProtocolError, match="state 9"):
        greeted().receive(b"\0\0\0\x09", 50, NO_TIME)
    learner = AutoSwitchMasterLink(FILE_BYTES, 100, NO_TIME, EpochList(), lambda: 0)
    learner.receive(bytes.fromhex("00000001000000010000000000000005"), 0, NO_TIME)
    assert learner.broker_id == -1


@given(st.binary(max_size=200), st.booleans())
def test_junk_ends_a_connection_in_one_way(junk: bytes, is_greeted: bool) -> None:
    """And is never taken for a part of the log."""
    slave = AutoSwitchSlaveLink(NO_TIME)
    if is_greeted:
        slave.receive(greeted().take_answer(), NO_TIME)
        slave.begin(40)
    try:
        bodies = slave.receive(junk, NO_TIME)
    except RemoteProtocolError:
        return
    assert bodies == []


def test_a_master_with_another_epoch_is_left() -> None:
    """The list of the handshake is what the next start compares with."""
    slave = AutoSwitchSlaveLink(NO_TIME)
    slave.receive(greeted().take_answer(), NO_TIME)
    slave.begin(0)
    other = AutoSwitchMasterLink(FILE_BYTES, 100, NO_TIME, EpochList([Epoch(2, 0)]), lambda: 0)
    other.receive(encode_greeting(2) + report(0), 0, NO_TIME)
    frame = b"".join(map(bytes, other.encode(memoryview(b"x"), NO_TIME)))
    with pytest.raises(RemoteProtocolError, match="has begun epoch 2 at 0"):
        slave.receive(frame, NO_TIME)
