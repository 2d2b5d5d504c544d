"""The native core reads frames of pulls as the Python decoders do, or stops."""

from __future__ import annotations

import json
import struct
from collections import Counter
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.request_fields import pull_fields

from cometmq import native
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader, ServerCommand
from cometmq.wire.header.headers import PullMessageHeader

pytestmark = pytest.mark.skipif(
    native.read_pull is None, reason=f"there is nothing to compare: {native.describe()}"
)

NUMBERS = st.one_of(
    st.integers(-3, 1 << 20).map(str),
    st.sampled_from(
        ["007", "-0", "+1", " 1", "1 ", "", "1e3", "1.0", "9" * 18, "9" * 19, "2147483647",
         "2147483648", "-2147483648", "-2147483649", "0x1", "\u0661"]
    ),
)  # fmt: skip
TEXTS = st.sampled_from(
    ["", "*", "AaAa", "BBBB", "a || b", "t", 'q"\\', "ü", "\U0001f600", "\n", "x" * 300, "null"]
)
TEXT_FIELDS = ("consumerGroup", "topic", "subscription", "expressionType")
NUMBER_FIELDS = (
    "queueId", "queueOffset", "maxMsgNums", "sysFlag", "commitOffset", "suspendTimeoutMillis",
    "subVersion", "maxMsgBytes", "requestSource",
)  # fmt: skip
OTHER_FIELDS = ("bname", "proxyFrowardClientId", "lo", "unknown", "queueid")


@st.composite
def frames(draw: st.DrawFn) -> bytes:
    """A pull as any client may write it; about every second one is plain."""
    fields: dict[str, Any] = pull_fields(
        draw(st.sampled_from(["t", "u"])), draw(st.integers(0, 99)), draw(st.integers(0, 3))
    )
    header: dict[str, Any] = {
        "code": draw(st.sampled_from([11, 11, 11, 361])),
        "flag": 0,
        "language": draw(st.sampled_from(["JAVA", "GO"])),
        "opaque": draw(st.integers(0, 2**31 - 1)),
        "version": 493,
    }
    if draw(st.booleans()):
        fields["maxMsgBytes"] = draw(st.sampled_from(["1", "262144", "-1", "0"]))
    is_odd = draw(st.booleans())
    if is_odd:
        for _ in range(draw(st.integers(0, 2))):
            fields[draw(st.sampled_from(NUMBER_FIELDS))] = draw(NUMBERS)
        for _ in range(draw(st.integers(0, 2))):
            fields[draw(st.sampled_from(TEXT_FIELDS + OTHER_FIELDS))] = draw(TEXTS)
        if draw(st.integers(0, 4)) == 0:
            del fields[draw(st.sampled_from(sorted(fields)))]
        if draw(st.integers(0, 6)) == 0:
            header["flag"] = draw(st.sampled_from([1, 2, -1]))
        if draw(st.integers(0, 6)) == 0:
            header["code"] = draw(st.sampled_from([10, 12, 310, 0, -11, 11.0]))
    names = draw(st.permutations(sorted(fields)))
    fields = {name: fields[name] for name in names}
    if draw(st.integers(0, 2)) == 0 and type(header["code"]) is int:
        command = RemotingCommand(
            header["code"], header["opaque"], header["flag"], "JAVA", 493,
            draw(st.sampled_from([None, "a remark"])), decoded_ext=fields, serialize_type=1,
        )  # fmt: skip
        return encode_command(command)
    header["extFields"] = fields
    if is_odd and draw(st.integers(0, 4)) == 0:
        fields[draw(st.sampled_from(NUMBER_FIELDS))] = draw(
            st.sampled_from([1, 0, -1, None, True, 1.5, [], {}])
        )
    if is_odd and draw(st.integers(0, 4)) == 0:
        header[draw(st.sampled_from(["remark", "x", "serializeTypeCurrentRPC"]))] = draw(
            st.sampled_from([None, "a", 1, 1.5, [], {"a": 1}])
        )
    keys = draw(st.permutations(sorted(header)))
    if draw(st.booleans()):
        keys = ["code", *(key for key in keys if key != "code")]
    raw = json.dumps(
        {key: header[key] for key in keys},
        separators=None if is_odd and draw(st.integers(0, 4)) == 0 else (",", ":"),
        ensure_ascii=draw(st.booleans()),
    ).encode()
    body = draw(st.binary(max_size=2)) if is_odd else b""
    return struct.pack(">iI", 4 + len(raw) + len(body), len(raw)) + raw + body


@st.composite
def spoilt(draw: st.DrawFn) -> bytes:
    """A frame with bytes that are wrong, missing or too many."""
    data = bytearray(draw(frames()))
    for _ in range(draw(st.integers(1, 3))):
        position = draw(st.integers(0, len(data)))
        data[position : position + draw(st.integers(0, 3))] = draw(st.binary(max_size=3))
    return bytes(data)


def checked_fields(code: int, header: PullMessageHeader) -> tuple[Any, ...]:
    return (
        code, header.consumer_group, header.topic, header.subscription, header.expression_type,
        header.queue_id, header.sys_flag, header.sub_version,
    )  # fmt: skip


def test_core_reads_what_python_reads() -> None:
    """Every field of a pull that it takes, and one key for what passes the same checks."""
    read = native.read_pull
    assert read is not None
    counts: Counter[bool] = Counter()
    by_key: dict[bytes, tuple[Any, ...]] = {}

    @settings(
        max_examples=800,
        deadline=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    @given(st.one_of(frames(), frames(), spoilt()), st.binary(max_size=9), st.binary(max_size=9))
    def run(frame: bytes, before: bytes, behind: bytes) -> None:
        pull = read(before + frame + behind, len(before))
        counts[pull is not None] += 1
        if pull is None:
            return
        end, key, serialize_type, opaque, queue_offset, commit_offset, count, size, wait_ms = pull
        reader: FrameReader[ServerCommand] = FrameReader(has_fast_commands=True)
        (command,) = reader.receive((before + frame + behind)[len(before) : end])
        assert isinstance(command, RemotingCommand)
        header = PullMessageHeader.from_command(command)
        assert (command.code in {11, 361}, command.flag) == (True, 0)
        assert (serialize_type, opaque) == (command.serialize_type, command.opaque)
        assert (queue_offset, commit_offset) == (header.queue_offset, header.commit_offset)
        assert (count, size) == (header.max_msg_nums, header.max_msg_bytes or 0)
        assert wait_ms == header.suspend_timeout_ms
        fields = checked_fields(command.code, header)
        assert by_key.setdefault(key, fields) == fields

    run()
    assert counts[True] > 150, "the core took hardly anything: nothing was compared"
    assert counts[False] > 50, "the core never stopped"


@pytest.mark.parametrize("serialize_type", [0, 1])
def test_core_reads_what_clients_write(serialize_type: int) -> None:
    """Java's frames, and the fields that namespaces, traces and slaves add."""
    read = native.read_pull
    assert read is not None
    fields = pull_fields(
        "t", 7, maxMsgBytes="262144", suspendTimeoutMillis="15000", bname="broker-a", lo="false",
        ns="n",
    )  # fmt: skip
    frame = encode_command(RemotingCommand.request(11, fields, serialize_type=serialize_type))
    pull = read(frame, 0)
    assert pull is not None
    assert (pull[0], *pull[2:]) == (len(frame), serialize_type, 0, 7, 0, 32, 262144, 15000)
    with pytest.raises(ValueError, match="outside the data"):
        read(frame, len(frame) + 1)
