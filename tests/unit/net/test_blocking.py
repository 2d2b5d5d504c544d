"""A blocking connection gives a send its answer, in the short form or as a whole command."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest

from cometmq import native
from cometmq.net import blocking
from cometmq.net.blocking import BlockingChannel
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_decode import PlainSendAnswer, decode_plain_answer
from cometmq.wire.header.fast_encode import SendResponseEncoder

ENCODER = SendResponseEncoder()
PUSH = encode_command(RemotingCommand.request(40, {"topic": "T"}))


@contextmanager
def peer(*pieces: bytes) -> Iterator[tuple[str, list[RemotingCommand]]]:
    """A server that answers its one request with these pieces, and keeps all that it read."""
    seen: list[RemotingCommand] = []
    listener = socket.create_server(("127.0.0.1", 0))

    def serve() -> None:
        connection, _ = listener.accept()
        reader = FrameReader()
        # A client that closes with unread bytes resets the connection.
        with connection, suppress(ConnectionResetError):
            connection.settimeout(30)
            seen.extend(reader.receive(connection.recv(65536)))
            for piece in pieces:
                connection.sendall(piece)
            while data := connection.recv(65536):
                seen.extend(reader.receive(data))

    thread = threading.Thread(target=serve)
    thread.start()
    try:
        yield f"127.0.0.1:{listener.getsockname()[1]}", seen
    finally:
        thread.join()
        listener.close()


def offset_of(answer: RemotingCommand | PlainSendAnswer) -> Any:
    """The queue offset of an answer of either form, or its code."""
    if isinstance(answer, PlainSendAnswer):
        return answer.queue_offset
    return decode_plain_answer(answer.raw_ext).queue_offset if not answer.code else answer.code


def exchange(*pieces: bytes) -> tuple[RemotingCommand | PlainSendAnswer, list[int]]:
    """The answer to a send, and the codes of what the peer read."""

    def serve(command: RemotingCommand) -> RemotingCommand:
        return command.answer(0)

    with peer(*pieces) as (address, seen):
        channel = BlockingChannel(address, on_request=serve)
        try:
            request = RemotingCommand.request(310, {"b": "T"})

            def encode(opaque: int) -> bytes:
                request.opaque = opaque
                return encode_command(request)

            answer = channel.exchange_send(encode, 30_000)
        finally:
            channel.close()
    return answer, [command.code for command in seen]


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("behind", [b"", PUSH], ids=["alone", "before a push"])
@pytest.mark.parametrize("before", [b"", PUSH], ids=["", "behind a push"])
@pytest.mark.parametrize("cut", [0, 5])
def test_a_send_gets_its_answer(
    is_native: bool, before: bytes, behind: bytes, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests of the server around the answer are served, however the bytes arrive."""
    if is_native and native.take_send_answers is None:
        pytest.skip(native.describe())
    if not is_native:
        monkeypatch.setattr(blocking, "_take_natively", None)
    data = before + ENCODER.encode(1, 0, 3, 77, "0A", "7F") + behind
    answer, codes = exchange(data[:cut], data[cut:])
    assert offset_of(answer) == 77
    assert codes[0] == 310
    assert codes[1:].count(0) >= (before != b"")


@pytest.mark.skipif(native.take_send_answers is None, reason=native.describe())
def test_the_form_of_an_answer() -> None:
    """A success that comes alone has the short form; a refusal is the command."""
    answer, _ = exchange(ENCODER.encode(1, 0, 3, 77, "0A", "7F"))
    assert isinstance(answer, PlainSendAnswer)
    refusal, _ = exchange(ENCODER.encode_refusal(1, 0, 14, "no"))
    assert isinstance(refusal, RemotingCommand)
    assert (refusal.code, refusal.remark) == (14, "no")
