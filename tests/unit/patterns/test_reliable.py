"""Prepared messages in SQLite: decided by the program, by its check, by an operator, or never."""

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from tests.unit.client.waiting import until
from tests.unit.patterns.stage import HandClock, plain_engine
from tests.unit.patterns.test_outbox import Broker, add, an_outbox, grouped

from cometmq import Message
from cometmq.errors import ConfigError
from cometmq.patterns.outbox import Outbox, OutboxRow, Relay
from cometmq.patterns.outbox.table import PREPARED, SENT
from cometmq.patterns.reliable import HttpCallbacks, MessageDropped, NoticeQueries, ReliableMessages
from cometmq.patterns.reliable.http import NotAccepted


class Crash(BaseException):
    """The process ends here."""


def answering(answers: dict[bytes, Any]) -> Any:
    """A check that answers by a message's body, or raises what it finds there."""

    async def check(message: Message) -> bool | None:
        answer = answers[message.body]
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    return check


def test_the_program_decides(tmp_path: Path) -> None:
    """Only what is confirmed is sent; a second decision changes nothing, a late confirm fails."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            relay = Relay(outbox, broker, keep_ms=10_000)
            reliable = ReliableMessages(outbox, answering({}), keep_ms=500_000)
            done, dropped = [await reliable.prepare(grouped(name)) for name in ("yes", "no")]
            assert await relay.run_once() == 0
            assert (await outbox.status()).prepared == 2
            await reliable.confirm(done)
            assert await reliable.drop(dropped)
            await relay.run_once()
            await reliable.confirm(done)
            assert not await reliable.drop(done), "it was sent"
            assert await reliable.drop(dropped)
            with pytest.raises(MessageDropped, match=f"row {dropped} of the outbox was dropped"):
                await reliable.confirm(dropped)
            assert broker.bodies == [b"yes"]
            assert (await outbox.find(done)).state == SENT
            clock.now += 60_000
            await relay.run_once()
            assert await outbox.find(done) is None
            assert await outbox.find(dropped) is not None
            clock.now += 500_000
            await relay.run_once()
            assert await outbox.find(dropped) is None
            await reliable.confirm(done)

    asyncio.run(run())


def test_the_check_decides_what_the_program_left(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """After growing pauses; an alarm after some checks, whose answer counts too."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            broker = Broker()
            alarms: list[tuple[bytes, str]] = []

            def on_undecided(row: OutboxRow, reason: str) -> bool | None:
                alarms.append((row.body, reason))
                if row.body == b"broken":
                    raise RuntimeError("no pager")
                return True if len(alarms) > 2 else None

            answers: dict[bytes, Any] = {
                b"yes": True,
                b"no": False,
                b"later": None,
                b"broken": OSError("no bank"),
            }
            reliable = ReliableMessages(
                outbox,
                answering(answers),
                first_check_ms=1_000,
                pauses_ms=(2_000, 4_000),
                checks_alarm=3,
                on_undecided=on_undecided,
            )
            ids = [await reliable.prepare(grouped(body.decode())) for body in answers]
            assert await reliable.run_once() == 0
            clock.now += 1_000
            assert await reliable.run_once() == 4
            assert await reliable.run_once() == 0
            states = [(await outbox.find(row_id)).state for row_id in ids]
            assert states == ["waiting", "dropped", PREPARED, PREPARED]
            clock.now += 1_999
            assert await reliable.run_once() == 0, "the first pause is two seconds"
            clock.now += 1
            assert await reliable.run_once() == 2
            rows = await outbox.undecided_rows()
            assert [row.error for row in rows] == ["the check has no answer", "OSError: no bank"]
            assert alarms == []
            clock.now += 4_000
            assert await reliable.run_once() == 2
            both = [(b"broken", "OSError: no bank"), (b"later", "the check has no answer")]
            assert sorted(alarms) == both
            assert (await outbox.status()).prepared_oldest_ms == 7_000
            answers[b"broken"] = False
            clock.now += 4_000
            assert await reliable.run_once() == 2
            assert (await outbox.status()).prepared == 0
            await Relay(outbox, broker).run_once()
            assert sorted(broker.bodies) == [b"later", b"yes"]

    asyncio.run(run())
    assert "is undecided after 3 checks: OSError: no bank" in caplog.text
    assert "on_undecided failed" in caplog.text


def test_two_processes_ask_once(tmp_path: Path) -> None:
    """The one that takes a row moves its time; if it dies, another asks at the next time."""

    async def run() -> None:
        clock = HandClock()
        async with an_outbox(tmp_path, clock) as outbox:
            asked: list[bytes] = []

            async def check(message: Message) -> None:
                asked.append(message.body)
                raise Crash

            first, second = [ReliableMessages(outbox, check, pauses_ms=(500,)) for _ in range(2)]
            row_id = await first.prepare(grouped("a"))
            clock.now += 60_000
            with pytest.raises(Crash):
                await first.run_once()
            assert await second.run_once() == 0
            clock.now += 500
            with pytest.raises(Crash):
                await second.run_once()
            assert asked == [b"a", b"a"]
            assert (await outbox.find(row_id)).state == PREPARED

    asyncio.run(run())


def test_in_the_background_with_a_plain_engine(tmp_path: Path) -> None:
    """A plain check runs in a thread; its answer wakes the relay at once."""
    with plain_engine(tmp_path) as engine:
        outbox = Outbox(engine)
        outbox.create()

        async def run() -> None:
            broker = Broker()
            relay = Relay(outbox, broker, poll_ms=10**7, lease_ms=10**8)
            reliable = ReliableMessages(outbox, lambda message: True, first_check_ms=1, poll_ms=1)
            async with relay:
                confirmed = reliable.prepare(grouped("a"))
                reliable.confirm(confirmed)
                await until(lambda: len(broker.messages) == 1)
                reliable.prepare(grouped("b"))
                async with reliable:
                    await until(lambda: len(broker.messages) == 2)

        asyncio.run(run())


def test_numbers_are_positive(tmp_path: Path) -> None:
    with plain_engine(tmp_path) as engine:
        with pytest.raises(ConfigError, match="checks_alarm=0"):
            ReliableMessages(Outbox(engine), answering({}), checks_alarm=0)
        with pytest.raises(ConfigError, match=r"pauses_ms=\(\)"):
            ReliableMessages(Outbox(engine), answering({}), pauses_ms=())
        with pytest.raises(ConfigError, match=r"pauses_ms of a Relay is \(\)"):
            Relay(Outbox(engine), Broker(), pauses_ms=())


class Receiver(BaseHTTPRequestHandler):
    """Answers with the statuses that are left, then with 204; a redirect goes to itself."""

    statuses: list[int]
    requests: list[tuple[str, dict[str, str], bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.requests.append((self.path, dict(self.headers.items()), body))
        self.send_response(self.statuses.pop(0) if self.statuses else 204)
        self.send_header("Location", "/elsewhere")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *arguments: Any) -> None:
        pass


@contextmanager
def a_receiver(*statuses: int) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    requests: list[tuple[str, dict[str, str], bytes]] = []
    kind = type("A", (Receiver,), {"statuses": list(statuses), "requests": requests})
    with ThreadingHTTPServer(("127.0.0.1", 0), kind) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}", requests
        finally:
            server.shutdown()
            thread.join()


def test_notices_are_posted_with_growing_pauses(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Until an answer is 2xx, with one key; a redirect is no success; then the row is dead."""

    async def run() -> None:
        clock = HandClock()
        with a_receiver(500, 302) as (base, requests):
            async with an_outbox(tmp_path, clock) as outbox:
                broker = Broker()
                posting = HttpCallbacks(
                    lambda message: message.properties.get("url"),
                    otherwise=broker,
                    headers_of=lambda message: {"Signature": message.body.decode()[:2]},
                )
                relay = Relay(outbox, posting, pauses_ms=(1_000, 5_000), keep_ms=10**9)
                properties = {"url": f"{base}/paid", "content-type": "text/plain"}
                notice = Message("Paid", b"order-1", properties=properties, message_group="order-1")
                await add(outbox, notice, grouped("plain"))
                await relay.run_once()
                assert broker.bodies == [b"plain"]
                clock.now += 1_000
                await relay.run_once()
                clock.now += 4_999
                assert await relay.run_once() == 0
                clock.now += 1
                await relay.run_once()
                assert [request[0] for request in requests] == ["/paid"] * 3
                assert {request[2] for request in requests} == {b"order-1"}
                assert len({request[1]["Idempotency-Key"] for request in requests}) == 1
                headers = requests[0][1]
                assert (headers["Content-Type"], headers["Signature"]) == ("text/plain", "or")
                assert [row.state for row in await outbox.rows_of("order-1")] == [SENT]

    asyncio.run(run())
    assert "one try is left" in caplog.text


def test_what_cannot_be_posted(tmp_path: Path) -> None:
    """The error names the status, the URL, or what is missing."""

    async def run() -> None:
        with a_receiver(503) as (base, _):
            urls = {"A": base, "B": "file:///etc/passwd", "C": None}
            posting = HttpCallbacks(lambda message: urls[message.topic])
            with pytest.raises(NotAccepted, match="answered 503"):
                await posting.send(Message("A", b""))
            with pytest.raises(ConfigError, match="give one of HTTP"):
                await posting.send(Message("B", b""))
            with pytest.raises(ConfigError, match="topic C has no URL"):
                await posting.send(Message("C", b""))
        with pytest.raises(OSError, match="refused"):
            await posting.send(Message("A", b""))

    asyncio.run(run())


async def get(app: NoticeQueries, path: str, method: str = "GET") -> tuple[int, Any]:
    """What an ASGI server answers."""
    sent: list[Any] = []

    async def send(event: Any) -> None:
        sent.append(event)

    async def receive() -> Any:
        raise AssertionError("a GET has no body")

    scope = {"type": "http", "method": method, "path": path, "root_path": "/notices"}
    await app(scope, receive, send)
    return sent[0]["status"], json.loads(sent[1]["body"])


@pytest.mark.parametrize("is_plain", [False, True])
def test_a_receiver_asks_for_what_it_has_missed(tmp_path: Path, is_plain: bool) -> None:
    """By its group, with the state of each notice; not another's, nor what is dropped."""

    async def run() -> None:
        async with an_outbox(tmp_path, HandClock()) as writing:
            await add(writing, grouped("paid", "o 1"), Message("t", b"\xff", message_group="o 1"))
            await add(writing, grouped("other", "o2"))
            reliable = ReliableMessages(writing, answering({}))
            await reliable.drop(await reliable.prepare(grouped("never", "o 1")))
            with plain_engine(tmp_path, "async.db") as engine:
                outbox = Outbox(engine) if is_plain else writing
                app = NoticeQueries(outbox, is_allowed=lambda scope, group: group != "o2")
                status, notices = await get(app, "/notices/o%201")
                assert status == 200
                shown = [(n["state"], n.get("body", n.get("body_base64"))) for n in notices]
                assert shown == [("waiting", "paid"), ("waiting", "/w==")]
                assert await get(app, "/notices/none") == (200, [])
                assert (await get(app, "/notices/o2"))[0] == 403
                assert (await get(app, "/notices/o1", "POST"))[0] == 405
                with pytest.raises(RuntimeError, match="not websocket"):
                    await app({"type": "websocket"}, None, None)  # type: ignore[arg-type]

    asyncio.run(run())
