"""Servers of another protocol, and ones that say nothing: named as such, and passed over."""

import asyncio
import socket
import threading
from collections.abc import Iterator

import pytest
from tests.unit.client.fake import FakeBroker

from cometmq import Admin, Message, Producer
from cometmq.client.base.options import ClientOptions
from cometmq.errors import (
    ClientError,
    ConnectFailed,
    LocalProtocolError,
    NoRoute,
    RequestTimeout,
)
from cometmq.net.blocking import BlockingChannel
from cometmq.sync import Producer as SyncProducer
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

HTTP = b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n"


@pytest.fixture
def web() -> Iterator[str]:
    """The address of a server that answers whatever comes as a web server does."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with accepted:
                    if accepted.recv(1000):
                        accepted.sendall(HTTP)
                        accepted.recv(1000)

        thread = threading.Thread(target=serve)
        thread.start()
        yield f"127.0.0.1:{listener.getsockname()[1]}"
        listener.shutdown(socket.SHUT_RDWR)
        thread.join()


def test_a_web_server_is_no_name_server(web: str) -> None:
    """What it sends is named in the error itself, which says the same of both faces."""
    cause = "does not speak the remoting protocol: frame length 1213486160 \\('HTTP'\\)"
    words = f"server at {web} {cause}"

    async def run() -> None:
        async with Producer(name_server=web, retries=0) as producer:
            with pytest.raises(ConnectFailed, match=words):
                await producer.send(Message("t", b"x"))

    asyncio.run(run())
    with (
        SyncProducer(name_server=web, retries=0) as producer,
        pytest.raises(ConnectFailed, match=words),
    ):
        producer.send(Message("t", b"x"))


def test_the_next_name_server_is_asked(web: str) -> None:
    """One wrong address among several costs nothing but its try, with both faces."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        both = [web, broker.name_server]
        async with Producer(name_server=both) as producer:
            await producer.send(Message("t", b"x"))

        def blocking() -> None:
            with SyncProducer(name_server=both) as producer:
                producer.send(Message("t", b"y"))

        await asyncio.to_thread(blocking)
        assert broker.codes().count(RequestCode.SEND_MESSAGE_V2) == 2
        await broker.stop()

    asyncio.run(run())


def test_a_silent_broker_is_told_with_the_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """How long was waited stands in the error, for a send and for other requests."""
    options_of = ClientOptions.of
    monkeypatch.setattr(
        ClientOptions,
        "of",
        lambda name_server, **fields: options_of(
            name_server, **{**fields, "request_timeout_ms": 150}
        ),
    )

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        broker.override[RequestCode.SEND_MESSAGE_V2] = lambda command, connection: None
        async with Producer(name_server=broker.name_server, retries=0) as producer:
            with pytest.raises(RequestTimeout, match=r"[1-9]\d\d ms after the send began"):
                await producer.send(Message("t", b"x"), timeout_ms=150)
        broker.override[RequestCode.GET_ROUTEINFO_BY_TOPIC] = lambda command, connection: None
        async with Producer(name_server=broker.name_server) as producer:
            with pytest.raises(RequestTimeout, match="did not answer within 150 ms"):
                await producer.send(Message("t", b"x"))
        await broker.stop()

    asyncio.run(run())


def test_a_peer_that_does_not_read_is_told_with_the_bytes() -> None:
    """The kernel's buffers are full: a blocking request ends by its timeout, in words."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        channel = BlockingChannel(f"127.0.0.1:{listener.getsockname()[1]}")
        command = RemotingCommand.request(RequestCode.SEND_MESSAGE_V2, {}, b"x" * (12 << 20))
        with pytest.raises(ClientError, match=r"did not take \d{8} bytes within 200 ms") as caught:
            channel.request(command, 200)
        assert isinstance(caught.value, RequestTimeout)
        assert channel.is_closed


def test_a_name_that_cannot_be_a_topic_is_told_as_such() -> None:
    """Not as one that should be created."""

    async def run() -> None:
        broker = FakeBroker({"t": 1})
        await broker.start()
        async with Admin(name_server=broker.name_server) as admin:
            with pytest.raises(LocalProtocolError, match="bad topic, contains illegal characters"):
                await admin.topic_route("bad topic")
            with pytest.raises(NoRoute, match="cometmq topic create good-topic"):
                await admin.topic_route("good-topic")
        await broker.stop()

    asyncio.run(run())
