"""Malformed frames end their connection, and both servers go on with the others."""

import struct

import pytest
from tests.raw_client import PeerClosed, RawClient

FRAME_BYTES_MAX = 16_777_216
UNKNOWN_CODE = 9999


def check_serves(address: str) -> None:
    """Check that a new connection gets a correct answer."""
    with RawClient(address) as client:
        answer = client.call(UNKNOWN_CODE)
    assert (answer.code, answer.opaque, answer.remark) == (3, 1, " request type 9999 not supported")


def head(length: int, header_bytes: int = 0, kind: int = 0) -> bytes:
    """Return the first eight bytes of a frame."""
    return struct.pack(">iI", length, kind << 24 | header_bytes)


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(head(-1), id="length -1"),
        pytest.param(head(-(2**31)), id="smallest length"),
        pytest.param(head(2**31 - 1, 100), id="largest length"),
        pytest.param(head(FRAME_BYTES_MAX - 3, 100), id="one byte above the largest frame"),
        pytest.param(head(0) + b"{}", id="length 0"),
        pytest.param(head(3) + b"abc", id="shorter than its own head"),
        pytest.param(head(10, 7) + b"{}{}{}{}", id="header longer than the frame"),
        pytest.param(head(10, 0xFFFFFF) + b"{}{}{}{}", id="largest header"),
        pytest.param(head(10, 6, kind=7) + b"{}{}{}", id="unknown serialization type"),
        pytest.param(head(10, 6, kind=1) + b"\1\2\3\4\5\6", id="binary header cut off"),
        pytest.param(head(10, 6) + b"not js", id="not JSON"),
        pytest.param(head(10, 6) + b"[1, 2]", id="JSON, not an object"),
        pytest.param(head(10, 6) + b"\xff\xfe{}{}", id="not UTF-8"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n", id="a web browser"),
        pytest.param(b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(32), id="TLS"),
        pytest.param(b"\xff" * 100_000, id="noise"),
    ],
)
def test_what_is_no_frame_ends_the_connection(address: str, data: bytes) -> None:
    """The server closes the connection, since it cannot know where the next frame begins."""
    with RawClient(address) as client:
        client.send(data)
        assert client.is_closed_by_peer()
    check_serves(address)


def test_frames_before_the_bad_one_are_answered(address: str) -> None:
    """Correct frames before a bad one are answered, also when one read brings all of them."""
    with RawClient(address) as client:
        client.send(client.frame(UNKNOWN_CODE) + client.frame(UNKNOWN_CODE) + head(-5))
        assert [client.receive().opaque, client.receive().opaque] == [1, 2]
        assert client.is_closed_by_peer()
    check_serves(address)


@pytest.mark.parametrize(
    "header",
    [
        b'{"opaque":5}',
        b'{"code":null,"opaque":5}',
        b'{"code":"105","opaque":"5"}',
        b'{"code":{},"opaque":5}',
        b'{"code":1e300,"opaque":5}',
        b'{"code":105,"opaque":9999999999}',
        b'{"code":105,"opaque":null,"flag":null,"version":null}',
        b'{"code":105,"opaque":5,"flag":"x"}',
        b'{"code":105,"opaque":5,"language":7}',
        b'{"code":105,"opaque":5,"version":1e400}',
        b'{"code":105,"opaque":5,"remark":[1]}',
        b'{"code":105,"opaque":5,"extFields":[]}',
        b'{"code":105,"opaque":5,"extFields":"topic"}',
        b'{"code":105,"opaque":5,"extFields":{"topic":{"a":[1,null]}}}',
        b'{"code":105,"opaque":5,"extFields":{"topic":12345678901234567890}}',
        b'{"code":105,"opaque":5,"extFields":{"topic":"\\ud800"}}',
        b'{"code":105,"code":105,"opaque":5,"opaque":6}',
        b'{"code":105,"opaque":5,"extFields":' + b'{"a":' * 5000 + b"1" + b"}" * 5001,
        b"[" * 100_000,
        b'{"code":105,"opaque":5,"extFields":{' + b'"k":"v",' * 20_000 + b'"topic":"T"}}',
    ],
    ids=range(20),
)
def test_odd_headers_are_answered_or_end_the_connection(address: str, header: bytes) -> None:
    """The server answers an odd header or closes the connection; it never stops."""
    with RawClient(address) as client:
        client.send(head(4 + len(header), len(header)) + header)
        try:
            answer = client.receive()
        except PeerClosed:
            pass
        else:
            assert answer.is_response
            assert answer.code in {1, 3, 17}
    check_serves(address)


def test_bytes_that_come_one_by_one_make_frames(address: str) -> None:
    """A frame may come in single bytes; without Nagle's algorithm each is a read of its own."""
    with RawClient(address) as client:
        client.send_slowly(client.frame(UNKNOWN_CODE, {"k": "v"}, b"body"))
        client.send_slowly(client.frame(UNKNOWN_CODE))
        assert [client.receive().opaque, client.receive().opaque] == [1, 2]


@pytest.mark.parametrize("cut_at", [1, 4, 7, 8, 20])
@pytest.mark.parametrize("leave", ["close", "reset"])
def test_a_client_that_leaves_in_the_middle_of_a_frame_is_forgotten(
    address: str, cut_at: int, leave: str
) -> None:
    """The server forgets a client that leaves inside a frame, by an end or by a reset."""
    client = RawClient(address)
    client.send(client.frame(UNKNOWN_CODE)[:cut_at])
    if leave == "close":
        client.close()
    else:
        client.reset()
    check_serves(address)


def test_a_half_closed_client_still_gets_its_answers(address: str) -> None:
    """The server answers the requests before the end, then it closes the connection."""
    with RawClient(address) as client:
        client.send(client.frame(UNKNOWN_CODE) + client.frame(UNKNOWN_CODE))
        client.half_close()
        assert [client.receive().opaque, client.receive().opaque] == [1, 2]
        assert client.is_closed_by_peer()
    check_serves(address)


def test_one_way_requests_are_never_answered(address: str) -> None:
    """The server answers no one-way request, not even an unknown or a broken one."""
    with RawClient(address) as client:
        client.send(client.frame(UNKNOWN_CODE, oneway=True))
        client.send(client.frame(310, {"a": "x"}, b"", oneway=True))
        client.send(client.frame(103, {"brokerId": "x"}, b"", oneway=True))
        answer = client.call(UNKNOWN_CODE)
    assert answer.opaque == 4


def test_answers_nobody_asked_for_are_dropped(address: str) -> None:
    """The server ignores a response to a request that it never sent."""
    with RawClient(address) as client:
        frame = bytearray(client.frame(UNKNOWN_CODE))
        frame = frame.replace(b'"flag":0', b'"flag":1')
        client.send(bytes(frame))
        assert client.call(UNKNOWN_CODE).opaque == 2


def test_many_idle_connections_do_no_harm(address: str) -> None:
    """The server goes on beside two hundred idle connections, half with part of a frame."""
    idle = [RawClient(address) for _ in range(200)]
    try:
        for client in idle[::2]:
            client.send(client.frame(UNKNOWN_CODE)[:10])
        check_serves(address)
        answer = idle[1].call(UNKNOWN_CODE)
        assert answer.code == 3
    finally:
        for client in idle:
            client.close()
