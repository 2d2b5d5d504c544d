"""The connection's state: requests and responses, faults, deadlines and the end."""

import pytest

from cometmq.errors import LocalProtocolError
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.connection import IDLE_MS_MAX, Connection
from cometmq.wire.frame.framing import FrameReader


def a_connection(last_opaque: int = 0) -> Connection[RemotingCommand, str]:
    return Connection(FrameReader(), last_opaque)


def test_answers_may_come_in_any_order() -> None:
    """Each token once, unknown opaques are nobody's."""
    connection = a_connection()
    opaques = []
    for _ in range(3):
        opaque = connection.next_opaque()
        connection.start_request(opaque, f"token {opaque}")
        opaques.append(opaque)
    assert opaques == [1, 2, 3]
    assert connection.in_flight_count == 3
    assert connection.take_request(2) == "token 2"
    assert connection.take_request(2) is None
    assert connection.take_request(99) is None
    assert list(connection.close("gone")) == ["token 1", "token 3"]
    assert connection.in_flight_count == 0


def test_opaques_wrap_and_skip_those_in_use() -> None:
    """After the largest positive int32 comes 0, unless it still waits."""
    connection = a_connection(2**31 - 2)
    connection.start_request(0, "0")
    connection.start_request(1, "1")
    assert connection.next_opaque() == 2**31 - 1
    assert connection.next_opaque() == 2
    with pytest.raises(LocalProtocolError, match="in use"):
        connection.start_request(0, "5")


def test_two_sides_speak_to_each_other() -> None:
    """Requests, responses and pushes as the module's documentation writes them; no socket."""
    client, server = a_connection(), a_connection()
    opaque = client.next_opaque()
    client.start_request(opaque, "route")
    client.outgoing.append(client.encode_request(RemotingCommand.request(105), opaque))
    client.outgoing.append(client.encode_oneway(RemotingCommand.request(34)))
    request, heartbeat = server.receive_data(bytes(client.data_to_send()))
    assert client.outgoing == []
    assert (request.code, request.opaque, request.is_oneway) == (105, opaque, False)
    assert (heartbeat.code, heartbeat.is_oneway) == (34, True)
    assert server.encode_answer(heartbeat, RemotingCommand.response(0)) is None

    # Both sides use the same number; the response flag tells their requests apart.
    push_opaque = server.next_opaque()
    assert push_opaque == opaque
    server.start_request(push_opaque, "running info")
    server.outgoing.append(server.encode_request(RemotingCommand.request(307), push_opaque))
    answer_frame = server.encode_answer(request, RemotingCommand.response(0, body=b"routes"))
    assert answer_frame is not None
    server.outgoing.append(answer_frame)
    push, answer = client.receive_data(bytes(server.data_to_send()))
    assert (push.code, push.is_response) == (307, False)
    assert (answer.body, answer.is_response) == (b"routes", True)
    assert client.take_request(answer.opaque) == "route"
    assert server.in_flight_count == 1


def test_one_frame_leaves_as_it_is_and_several_as_one_buffer() -> None:
    """A transport makes one write of them."""
    connection = a_connection()
    frame = b"one frame"
    connection.outgoing.append(frame)
    assert connection.data_to_send() is frame
    connection.outgoing += [b"a", memoryview(b"bc")]
    assert connection.data_to_send() == b"abc"
    assert connection.data_to_send() == b""


def test_a_fault_ends_the_stream_after_the_commands_before_it() -> None:
    """What was complete is returned, what follows is not."""
    connection = a_connection()
    frame = encode_command(RemotingCommand.request(1))
    assert [command.code for command in connection.receive_data(frame + b"HTTP")] == [1]
    fault = connection.fault
    assert "HTTP" in str(fault)
    assert connection.receive_data(frame) == []
    assert str(connection.fault) == str(fault)


def test_deadlines_expire_in_order_and_once() -> None:
    """A request without a deadline waits for ever."""
    connection = a_connection()
    assert connection.next_deadline() is None
    connection.start_request(1, "soon", 5.0)
    connection.start_request(2, "later", 9.0)
    connection.start_request(3, "ever")
    assert connection.next_deadline() == 5.0
    assert connection.take_expired(4.9) == []
    assert connection.take_expired(5.0) == [(1, "soon")]
    assert connection.take_request(1) is None
    assert connection.take_expired(1e12) == [(2, "later")]
    assert connection.in_flight_count == 1


def test_the_end_is_told_once_with_its_reason() -> None:
    """A second reason does not replace the first, and nothing is left to be sent."""
    connection = a_connection()
    connection.start_request(1, "a")
    connection.outgoing.append(b"unsent")
    assert list(connection.close("the peer reset it")) == ["a"]
    assert list(connection.close("closed by us")) == []
    assert connection.is_closed
    assert connection.close_reason == "the peer reset it"
    assert connection.data_to_send() == b""


def test_silence_counts_from_the_last_read() -> None:
    """A server compares it with the longest silence it accepts."""
    connection = a_connection()
    connection.received_ms = 1_000
    assert connection.silent_ms(1_000 + IDLE_MS_MAX) == IDLE_MS_MAX
