"""The server of pages over real sockets: keep-alive, pages that take turns, hostile requests."""

import asyncio
import http.client
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from threading import Event, Thread

import pytest

from cometmq.net.env import system_environment
from cometmq.net.page_server import CONNECTIONS_MAX, HEAD_BYTES_MAX, Page, PageServer


def late(done: Callable[[Page], None]) -> None:
    """A page that is ready some turns later."""
    loop = asyncio.get_running_loop()
    loop.call_soon(lambda: loop.call_soon(done, (200, "text/plain", b"late")))


@contextmanager
def served() -> Iterator[int]:
    """A server in a thread of its own; yields its port."""
    is_ready, stop = Event(), Event()
    ports: list[int] = []

    async def serve() -> None:
        pages = {"/late": late, "/bad": lambda done: done((503, "text/plain", b"bad"))}
        server = PageServer(system_environment(), pages)
        ports.append(await server.listen("127.0.0.1", 0))
        is_ready.set()
        await asyncio.to_thread(stop.wait)
        server.close()

    thread = Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    try:
        assert is_ready.wait(30)
        yield ports[0]
    finally:
        stop.set()
        thread.join()


@pytest.fixture(scope="module")
def port() -> Iterator[int]:
    """One server for all tests here."""
    with served() as bound:
        yield bound


def test_one_connection_gets_page_after_page(port: int) -> None:
    """Also a page that is built later, HEAD without a body, and what there is not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    for method, path, status, content in (
        ("GET", "/late", 200, b"late"),
        ("GET", "/late?x=1", 200, b"late"),
        ("HEAD", "/late", 200, b""),
        ("GET", "/bad", 503, b"bad"),
        ("GET", "/other", 404, b"no such page; there are /bad, /late\n"),
    ):
        connection.request(method, path)
        answer = connection.getresponse()
        assert (answer.status, answer.read()) == (status, content)
        assert answer.headers["cache-control"] == "no-store"
    connection.close()


def test_requests_in_one_read_are_answered_in_order(port: int) -> None:
    """The second waits for the first page, which takes longer."""
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(
            b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n"
            b"GET /bad HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
        )
        answer = b"".join(iter(lambda: client.recv(4096), b""))
    assert answer.index(b"200") < answer.index(b"late") < answer.index(b"503")
    assert answer.endswith(b"bad")


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"POST /late HTTP/1.1\r\nhost: x\r\ncontent-length: 1\r\n\r\nx", b"405"),
        (b"GET /late HTTP/1.1\r\n" + b"a: b\r\n" * HEAD_BYTES_MAX, b"431"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
        (b"GET /late HTTP/1.1\r\n\r\n", b"400"),
    ],
    ids=["post", "long head", "TLS", "no host"],
)
def test_what_is_no_plain_request_is_refused(
    port: int, request_bytes: bytes, status: bytes
) -> None:
    """With an answer that says why, and the end of the connection."""
    with socket.create_connection(("127.0.0.1", port), 30) as client:
        client.sendall(request_bytes)
        answer = b""
        try:
            while data := client.recv(4096):
                answer += data
        except ConnectionResetError:
            pass  # it closed while the rest of the request was on its way
    assert answer.startswith(b"HTTP/1.1 " + status)


def test_connections_have_a_bound() -> None:
    """One more is closed at once, and a later one is served when another has gone."""
    with served() as port:
        clients = [
            socket.create_connection(("127.0.0.1", port), 30) for _ in range(CONNECTIONS_MAX)
        ]
        for client in clients:  # each is accepted before the next connects
            client.sendall(b"GET /bad HTTP/1.1\r\nhost: x\r\n\r\n")
            assert client.recv(4096).startswith(b"HTTP/1.1 503")
        with socket.create_connection(("127.0.0.1", port), 30) as surplus:
            assert surplus.recv(1) == b""
        for client in clients:
            client.close()
