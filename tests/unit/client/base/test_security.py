"""Signatures, TLS and denials: what travels, what is refused, and in which words."""

import asyncio
import shutil
import ssl
import subprocess
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
from tests.unit.client.fake import FakeBroker

import cometmq
import cometmq.sync
from cometmq import Message, Tls
from cometmq.client.base.security import Security
from cometmq.client.base.transport import CHECK_IDLE_AFTER_S
from cometmq.errors import AccessDenied, ConfigError, ConnectFailed, TlsFailed
from cometmq.net.server import ServerConnection
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials, is_signature_right

KEYS: dict[str, Any] = {"access_key": "keeper", "secret_key": "the keeper's secret"}
ACL = "org.apache.rocketmq.acl.common.AclException: Check signature failed for accessKey=keeper"


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """The machine's own variables stay outside."""
    for name in ("ACCESS_KEY", "SECRET_KEY", "SECURITY_TOKEN", "TLS", "TLS_CA", "TLS_CERT"):
        monkeypatch.delenv(f"COMETMQ_{name}", raising=False)


@asynccontextmanager
async def fake_broker() -> AsyncIterator[FakeBroker]:
    """A scripted peer with a topic ``t``."""
    broker = FakeBroker({"t": 1})
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


def check_signed(broker: FakeBroker, token: str | None = None) -> set[int]:
    """Every request so far carries the right signature; the codes that were seen."""
    for command in broker.seen:
        ext = command.ext_fields
        assert ext.get("AccessKey") == "keeper", command.code
        assert ext.get("SecurityToken") == token
        assert is_signature_right(ext, command.body, KEYS["secret_key"]), command.code
    return set(broker.codes())


async def read(consumer: cometmq.PullConsumer, count: int) -> list[bytes]:
    """Bodies of the next messages."""
    bodies: list[bytes] = []
    while len(bodies) < count:
        got = await consumer.poll(5_000)
        assert got, f"only {len(bodies)} of {count} came"
        bodies += [message.body for message in got]
    return bodies


def test_each_request_of_the_asyncio_clients_is_signed() -> None:
    """Sends of every kind, heartbeats, routes, pulls, offsets and goodbyes."""

    async def run() -> set[int]:
        async with fake_broker() as broker:
            options: dict[str, Any] = {"name_server": broker.name_server, **KEYS}
            async with cometmq.Producer("p", security_token="one time", **options) as producer:
                await producer.send(Message("t", b"0" * 5000, properties={"ü": "🟢 %d"}))
                await producer.send(Message("t", b"1", message_group="g"))
                await producer.send_batch([Message("t", b"2"), Message("t", b"3")])
                await producer.send_oneway(Message("t", b"4"))
            codes = check_signed(broker, "one time")
            broker.seen.clear()
            got = asyncio.Event()

            def handle(message: cometmq.ReceivedMessage) -> None:
                if message.body == b"4":
                    got.set()

            async with cometmq.PushConsumer(
                "g", {"t": "*"}, handle, consume_from="first", **options
            ):
                await asyncio.wait_for(got.wait(), 20)
            async with cometmq.PullConsumer(
                "l", {"t": "*"}, consume_from="first", **options
            ) as pull:
                assert len(await read(pull, 5)) == 5
                await pull.commit()
            return codes | check_signed(broker)

    seen = asyncio.run(run())
    expected = {
        *(RequestCode.SEND_MESSAGE_V2, RequestCode.SEND_BATCH_MESSAGE, RequestCode.HEART_BEAT),
        *(RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.PULL_MESSAGE),
        *(RequestCode.LITE_PULL_MESSAGE, RequestCode.UPDATE_CONSUMER_OFFSET),
        *(RequestCode.QUERY_CONSUMER_OFFSET, RequestCode.UNREGISTER_CLIENT),
    }
    assert expected <= seen


@pytest.fixture
def threaded_broker() -> Iterator[FakeBroker]:
    """A scripted peer on a loop of its own, for blocking clients."""
    import threading

    loop = asyncio.new_event_loop()
    broker = FakeBroker({"t": 1})
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    asyncio.run_coroutine_threadsafe(broker.start(), loop).result(10)
    yield broker
    asyncio.run_coroutine_threadsafe(broker.stop(), loop).result(10)
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
    loop.close()


def test_each_request_of_the_blocking_clients_is_signed(threaded_broker: FakeBroker) -> None:
    """The blocking sends and questions are written elsewhere; they are signed as well."""
    broker = threaded_broker
    options: dict[str, Any] = {"name_server": broker.name_server, **KEYS}
    with cometmq.sync.Producer("p", **options) as producer:
        producer.send(Message("t", b"1"))
        producer.send_batch([Message("t", b"2"), Message("t", b"3")])
        producer.send_oneway(Message("t", b"4"))
    with cometmq.sync.Admin(**options) as admin:
        queue = cometmq.MessageQueue("t", broker.name, 0)
        admin.topic_route("t")
        assert admin.max_offset(queue) == 4
    seen = check_signed(broker)
    assert {RequestCode.SEND_MESSAGE_V2, RequestCode.GET_MAX_OFFSET} <= seen


def test_keys_of_the_environment_are_used(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is not given is looked up; what is given counts."""
    assert Security.of() == Security()
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "from outside")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "secret from outside")
    assert Security.of().credentials == Credentials("from outside", "secret from outside")
    assert Security.of(**KEYS).credentials == Credentials(**KEYS)
    monkeypatch.setenv("COMETMQ_TLS", "insecure")
    context = Security.of().tls
    assert context is not None
    assert context.verify_mode == ssl.CERT_NONE
    assert Security.of(tls=False).tls is None
    monkeypatch.setenv("COMETMQ_TLS", "perhaps")
    with pytest.raises(ConfigError, match="COMETMQ_TLS is 'perhaps'"):
        Security.of()


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"access_key": "a"}, "secret_key= is missing"),
        ({"secret_key": "s"}, "access_key= is missing"),
        ({"security_token": "t"}, "access_key= is missing"),
        ({"tls": Tls(ca_file="no/such.pem")}, "no/such.pem"),
        ({"tls": Tls(cert_file="no/such.pem")}, "no/such.pem"),
        ({"tls": Tls(key_file="no/such.key")}, "key_file= needs cert_file="),
    ],
)
def test_half_a_setting_is_refused(options: dict[str, Any], text: str) -> None:
    """Before anything is connected, with the setting's name."""
    with pytest.raises(ConfigError, match=text):
        cometmq.Producer("p", name_server="127.0.0.1:1", **options)


def test_secrets_are_not_shown() -> None:
    """Neither by the keys nor by the TLS settings."""
    shown = repr(Credentials("a", "hidden", "hidden")) + repr(Tls(key_password="hidden"))
    assert "hidden" not in shown


def denied(command: RemotingCommand, connection: ServerConnection) -> RemotingCommand:
    """What Java's brokers of 4.9 answer to a wrong signature."""
    return command.answer(1, ACL)


@pytest.mark.parametrize(
    ("code", "remark"),
    [
        (1, ACL),
        (16, "check signature failed."),
        (16, "User:stranger is not found."),
        (16, "username cannot be null."),
        (16, "User:keeper has no permission to access Topic:t from 127.0.0.1, no acl."),
    ],
)
def test_a_denied_send_fails_at_once(code: int, remark: str) -> None:
    """One try, one class for the words of all versions, and the next step in the text."""

    async def run() -> int:
        async with fake_broker() as broker:
            broker.override[RequestCode.SEND_MESSAGE_V2] = lambda command, _: command.answer(
                code, remark
            )
            async with cometmq.Producer("p", name_server=broker.name_server, **KEYS) as producer:
                with pytest.raises(AccessDenied) as raised:
                    await producer.send(Message("t", b"x"))
            assert remark in str(raised.value)
            assert "check access_key= and secret_key=" in str(raised.value)
            assert raised.value.code == code
            return broker.codes().count(RequestCode.SEND_MESSAGE_V2)

    assert asyncio.run(run()) == 1


@pytest.mark.parametrize("code", [RequestCode.HEART_BEAT, RequestCode.GET_ROUTEINFO_BY_TOPIC])
def test_a_denied_consumer_does_not_start(code: int) -> None:
    """Neither kind: a consumer that nobody lets in must not look alive."""

    async def run() -> None:
        async with fake_broker() as broker:
            broker.override[code] = denied
            options: dict[str, Any] = {"name_server": broker.name_server, **KEYS}
            for consumer in (
                cometmq.PushConsumer("g", {"t": "*"}, lambda _: None, **options),
                cometmq.PullConsumer("l", {"t": "*"}, **options),
            ):
                with pytest.raises(AccessDenied, match="Check signature failed"):
                    await consumer.start()
                await consumer.shutdown()

    asyncio.run(run())


def test_a_broker_without_lite_pull_is_pulled_the_old_way() -> None:
    """Brokers of 4.9 do not serve 361; the ordinary pull serves a pull consumer too."""

    async def run() -> list[int]:
        async with fake_broker() as broker:
            broker.override[RequestCode.LITE_PULL_MESSAGE] = lambda command, _: command.answer(
                3, " request type 361 not supported"
            )
            async with cometmq.Producer("p", name_server=broker.name_server) as producer:
                for number in range(3):
                    await producer.send(Message("t", b"%d" % number))
            async with cometmq.PullConsumer(
                "l", {"t": "*"}, name_server=broker.name_server, consume_from="first"
            ) as pull:
                assert await read(pull, 3) == [b"0", b"1", b"2"]
            return broker.codes()

    codes = asyncio.run(run())
    assert codes.count(RequestCode.LITE_PULL_MESSAGE) == 1
    assert RequestCode.PULL_MESSAGE in codes


# -- TLS ------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """PEM files of a certificate for 127.0.0.1 that signed itself, and of its key."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    folder = tmp_path_factory.mktemp("certificate")
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    subprocess.run(
        [
            *("openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
            *("-subj", "/CN=test", "-addext", "subjectAltName=IP:127.0.0.1"),
            *("-keyout", key, "-out", cert),
        ],
        check=True,
        capture_output=True,
        timeout=60,
    )
    return cert, key


@asynccontextmanager
async def relayed(broker: FakeBroker, certificate: tuple[str, str]) -> AsyncIterator[str]:
    """A TLS port in front of the scripted peer's name server; its address."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*certificate)
    tasks: set[asyncio.Task[None]] = set()

    async def pump(source: asyncio.StreamReader, target: asyncio.StreamWriter) -> None:
        while data := await source.read(65_536):
            target.write(data)
        target.close()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", broker.name_port)
        for one in (pump(reader, far_writer), pump(far_reader, writer)):
            task = asyncio.create_task(one)
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=context)
    try:
        yield f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()
        if tasks:
            await asyncio.wait(tasks, timeout=5)


def test_questions_go_through_tls_on_both_faces(certificate: tuple[str, str]) -> None:
    """A route travels encrypted; the authority is the one that was named."""

    async def run() -> None:
        async with fake_broker() as broker, relayed(broker, certificate) as address:
            tls = Tls(ca_file=certificate[0])
            async with cometmq.Admin(name_server=address, tls=tls) as admin:
                assert (await admin.topic_route("t")).queue_datas[0].broker_name == broker.name

            def ask() -> str:
                with cometmq.sync.Admin(name_server=address, tls=tls) as blocking:
                    blocking.topic_route("t")
                    time.sleep(2 * CHECK_IDLE_AFTER_S)  # an idle connection is looked at first
                    return blocking.topic_route("t").queue_datas[0].broker_name

            assert await asyncio.to_thread(ask) == broker.name
            assert broker.codes().count(RequestCode.GET_ROUTEINFO_BY_TOPIC) >= 2

    asyncio.run(run())


@pytest.mark.parametrize("face", ["asyncio", "blocking"])
def test_who_is_not_trusted_is_named(certificate: tuple[str, str], face: str) -> None:
    """An authority we do not know, a host it does not name, and a port without TLS."""

    async def ask(address: str, tls: Tls | None) -> None:
        if face == "asyncio":
            async with cometmq.Admin(name_server=address, tls=tls) as admin:
                await admin.topic_route("t")
            return

        def block() -> None:
            with cometmq.sync.Admin(name_server=address, tls=tls) as admin:
                admin.topic_route("t")

        await asyncio.to_thread(block)

    async def run() -> None:
        async with fake_broker() as broker, relayed(broker, certificate) as address:
            with pytest.raises(TlsFailed, match=r"was not accepted: .*ca_file"):
                await ask(address, Tls())
            port = address.rpartition(":")[2]
            with pytest.raises(TlsFailed, match="check_hostname=False"):
                await ask(f"localhost:{port}", Tls(ca_file=certificate[0]))
            loose = Tls(ca_file=certificate[0], check_hostname=False)
            await ask(f"localhost:{port}", loose)
            await ask(f"localhost:{port}", Tls(verify=False))
            with pytest.raises(TlsFailed, match="check that this port speaks TLS"):
                await ask(broker.name_server, Tls(verify=False))
            with pytest.raises(ConnectFailed, match="demands TLS"):
                await ask(address, None)

    asyncio.run(run())


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("nameserver", "did you mean name_server=?"),
        ("acces_key", "did you mean access_key=?"),
        ("zzz", "help() of the class lists them"),
    ],
)
def test_a_misspelt_argument_is_told_by_the_name_it_has(name: str, hint: str) -> None:
    """Not by the class of ours that it was handed on to."""
    arguments: dict[str, Any] = {name: "x"}
    with pytest.raises(TypeError) as caught:
        cometmq.sync.Producer("pg", **arguments)
    assert str(caught.value) == f"a client has no argument {name}=; {hint}"
