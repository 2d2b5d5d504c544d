"""A client's connection gives each answer to the request that waits for it."""

import asyncio
import gc
import logging
from dataclasses import replace
from typing import Any

import pytest

from cometmq import native
from cometmq.errors import ConnectFailed
from cometmq.net import channel as channel_module
from cometmq.net.channel import Channel, ChannelPool, SendToken
from cometmq.net.env import system_environment
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.fast_decode import PlainSendAnswer, decode_plain_answer
from cometmq.wire.header.fast_encode import SendResponseEncoder


class Send(SendToken):
    """A send that notes its answer, whichever form it has."""

    answers: list[Any]
    breaks: bool = False

    def __call__(self, answer: RemotingCommand | Exception) -> None:
        assert isinstance(answer, RemotingCommand)
        self.stored(decode_plain_answer(answer.raw_ext))

    def stored(self, answer: PlainSendAnswer) -> None:
        """Note the answer, or break."""
        if self.breaks:
            raise RuntimeError("a fault of ours")
        self.answers.append(answer.queue_offset)


async def answers_of(pieces: list[bytes], *, breaking: int = -1) -> list[Any]:
    """What sends with the opaques 1 to 4, and another request 5, get of these pieces."""
    channel = Channel(system_environment(), "127.0.0.1:1")
    got: list[Any] = []
    for opaque in range(1, 5):
        channel._connection.start_request(opaque, Send(got, opaque == breaking))
    channel._connection.start_request(5, lambda answer: got.append(answer.opaque))  # type: ignore[union-attr]
    for piece in pieces:
        channel.data_received(piece)
    assert channel.in_flight_count == 0
    return got


@pytest.mark.parametrize("is_native", [False, True])
@pytest.mark.parametrize("cut", [0, 3, 250, 700])
def test_answers_come_in_their_order(
    is_native: bool, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sends and other requests get their answers in the order of arrival, with and without C."""
    if is_native and native.take_send_answers is None:
        pytest.skip(native.describe())
    if not is_native:
        monkeypatch.setattr(channel_module, "_take_natively", None)
    encoder = SendResponseEncoder()
    data = b"".join(encoder.encode(n, 0, 0, n * 10, "0A", "7F") for n in (2, 1, 5, 4, 3))
    assert asyncio.run(answers_of([data[:cut], data[cut:]])) == [20, 10, 5, 40, 30]


@pytest.mark.skipif(native.take_send_answers is None, reason=native.describe())
def test_a_send_that_breaks_takes_no_answer_from_the_others(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """An exception of one send is logged, and the others of the same read get their answers."""
    encoder = SendResponseEncoder()
    data = b"".join(encoder.encode(n, 0, 0, n * 10, "0A", "7F") for n in (1, 2, 3, 4, 5))
    with caplog.at_level(logging.ERROR, "cometmq.net"):
        assert asyncio.run(answers_of([data], breaking=2)) == [10, 30, 40, 5]
    assert "an answer of 127.0.0.1:1 could not be handled" in caplog.text


class Refusing:
    """A network on which every attempt to connect fails after a turn of the loop."""

    async def connect(self, *arguments: Any) -> None:
        await asyncio.sleep(0)
        raise ConnectFailed("nobody listens there")


def test_a_failed_attempt_that_nobody_waits_for_is_not_an_error() -> None:
    """Whoever asked for the connection was cancelled; asyncio must not log an exception."""
    logged: list[dict[str, Any]] = []

    async def scenario() -> None:
        asyncio.get_running_loop().set_exception_handler(lambda _, context: logged.append(context))
        network: Any = Refusing()
        pool = ChannelPool(replace(system_environment(), network=network))
        asked = asyncio.ensure_future(pool.get("127.0.0.1:1"))
        await asyncio.sleep(0)
        asked.cancel()
        for _ in range(5):
            await asyncio.sleep(0)
        assert asked.cancelled()
        assert not pool._connecting
        gc.collect()

    asyncio.run(scenario())
    assert not logged
