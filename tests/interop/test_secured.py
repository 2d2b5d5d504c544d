"""Java clusters that demand signatures and TLS accept our clients or refuse them."""

import asyncio
import json
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from interop.peers import Unavailable
from interop.servers import JavaCluster

import cometmq
import cometmq.sync
from cometmq import Message, ReceivedMessage, Tls
from cometmq.errors import AccessDenied, ClientError, CometError, ConnectFailed, TlsFailed

ADMIN: Final = {"access_key": "interop-admin", "secret_key": "admin's own secret"}
READER: Final = {"access_key": "interop-reader", "secret_key": "reader's own secret"}
OPEN_TOPIC: Final = "OpenToReaders"
COUNT: Final = 60

PLAIN_ACL: Final = f"""
accounts:
- accessKey: {ADMIN["access_key"]}
  secretKey: "{ADMIN["secret_key"]}"
  admin: true
- accessKey: {READER["access_key"]}
  secretKey: "{READER["secret_key"]}"
  admin: false
  defaultTopicPerm: DENY
  defaultGroupPerm: SUB
  topicPerms:
  - {OPEN_TOPIC}=SUB
"""
AUTH: Final = "org.apache.rocketmq.auth.authentication.provider"
AUTH_SETTINGS: Final = {
    "authenticationEnabled": "true",
    "authenticationProvider": f"{AUTH}.DefaultAuthenticationProvider",
    "authenticationMetadataProvider": f"{AUTH}.LocalAuthenticationMetadataProvider",
    "initAuthenticationUser": json.dumps(
        {"username": ADMIN["access_key"], "password": ADMIN["secret_key"]}
    ),
    "innerClientAuthenticationCredentials": json.dumps(
        {"accessKey": ADMIN["access_key"], "secretKey": ADMIN["secret_key"]}
    ),
}


class Certificates:
    """An authority, certificates of a server and a client from it, and an untrusted authority."""

    def __init__(self, folder: Path) -> None:
        if shutil.which("openssl") is None:
            raise Unavailable("openssl is not installed")
        self._folder = folder
        for authority in ("ca", "stranger"):
            self._openssl(
                *("req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2"),
                *("-subj", f"/CN=interop {authority}"),
                *("-keyout", self.path(f"{authority}.key"), "-out", self.path(f"{authority}.pem")),
            )
        self._issue("server", "subjectAltName=IP:127.0.0.1")
        self._issue("client", "extendedKeyUsage=clientAuth")

    def path(self, name: str) -> str:
        """Of a file, `ca.pem`, `server.key` and so on."""
        return str(self._folder / name)

    def _openssl(self, *arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, timeout=60)

    def _issue(self, name: str, extension: str) -> None:
        (self._folder / "extension").write_text(extension, "utf-8")
        self._openssl(
            *("req", "-newkey", "rsa:2048", "-nodes", "-subj", f"/CN={name}"),
            *("-keyout", self.path(f"{name}.key"), "-out", self.path(f"{name}.csr")),
        )
        self._openssl(
            *("x509", "-req", "-days", "2", "-in", self.path(f"{name}.csr")),
            *("-CA", self.path("ca.pem"), "-CAkey", self.path("ca.key"), "-CAcreateserial"),
            *("-extfile", self.path("extension"), "-out", self.path(f"{name}.pem")),
        )

    def server_options(self, *, ask_clients: bool) -> list[str]:
        """Java's system properties: TLS only, with these certificates, also between servers."""
        values = {
            "enable": "true",
            "test.mode.enable": "false",
            "server.mode": "enforcing",
            "server.keyPath": self.path("server.key"),
            "server.certPath": self.path("server.pem"),
            "server.authClient": "true",
            "server.trustCertPath": self.path("ca.pem"),
            "server.need.client.auth": "require" if ask_clients else "none",
            "client.authServer": "true",
            "client.trustCertPath": self.path("ca.pem"),
            "client.keyPath": self.path("client.key"),
            "client.certPath": self.path("client.pem"),
        }
        return [f"-Dtls.{name}={value}" for name, value in values.items()]


@dataclass
class Secured:
    """A cluster and the options that give access to it."""

    cluster: JavaCluster
    options: dict[str, Any]
    certificates: Certificates

    def without(self, *names: str, **instead: Any) -> dict[str, Any]:
        """The right options without some, or with others instead."""
        kept = {name: value for name, value in self.options.items() if name not in names}
        return {"name_server": self.cluster.name_server, **kept, **instead}


def raised(kind: str, folder: Path) -> Secured:
    """A cluster with the demands of its kind."""
    certificates = Certificates(folder)
    ca = certificates.path("ca.pem")
    servers = folder / "servers"
    if kind == "acl+tls-4.9.7":
        cluster = JavaCluster(
            servers,
            settings={"aclEnable": "true"},
            options=certificates.server_options(ask_clients=False),
            version="4.9.7",
        )
        (servers / "conf" / "plain_acl.yml").write_text(PLAIN_ACL, "utf-8")
        return Secured(cluster, {**ADMIN, "tls": Tls(ca_file=ca)}, certificates)
    if kind == "auth-5.4.0":
        return Secured(JavaCluster(servers, settings=AUTH_SETTINGS), dict(ADMIN), certificates)
    options = certificates.server_options(ask_clients=True)
    tls = Tls(
        ca_file=ca,
        cert_file=certificates.path("client.pem"),
        key_file=certificates.path("client.key"),
    )
    return Secured(JavaCluster(servers, options=options), {"tls": tls}, certificates)


@pytest.fixture(scope="module", params=["acl+tls-4.9.7", "auth-5.4.0", "mutual-tls-5.4.0"])
def secured(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Secured]:
    """Each kind of secured cluster, ready for authorised clients."""
    folder = tmp_path_factory.mktemp("secured")
    try:
        made = raised(request.param, folder)
    except Unavailable as error:
        pytest.skip(f"{request.param}: {error}")
    with made.cluster, cometmq.sync.Admin(**made.without()) as admin:
        wait_for_route(admin, "TBW102")
        yield made


def wait_for_route(admin: cometmq.sync.Admin, topic: str, timeout_s: float = 60.0) -> None:
    """Wait until the name server knows a topic."""
    deadline = time.monotonic() + timeout_s
    while True:
        try:
            admin.topic_route(topic)
            return
        except ClientError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.02)


def created(secured: Secured, topic: str) -> str:
    """A new topic; an authorised client creates it."""
    with cometmq.sync.Admin(**secured.without()) as admin:
        admin.create_topic(topic, queue_count=2)
        wait_for_route(admin, topic)
    return topic


def messages(topic: str) -> list[Message]:
    """Messages with every field that a signature covers, and compressible bodies."""
    return [
        Message(
            topic,
            f"body {number} ".encode() * (1 + number * 40),
            tags="täg",
            keys=(f"key-{number}",),
            properties={"n": str(number), "signé": "öüä 标签 🟢"},
        )
        for number in range(COUNT)
    ]


def check(received: list[ReceivedMessage], sent: list[Message]) -> None:
    """Each message once and unchanged."""
    assert len(received) == len(sent)
    by_number = {message.properties["n"]: message for message in received}
    assert len(by_number) == len(sent)
    for one in sent:
        got = by_number[one.properties["n"]]
        assert got.body == one.body
        assert got.tags == one.tags
        assert got.keys == tuple(one.keys)
        assert got.properties["signé"] == one.properties["signé"]


@pytest.mark.full
def test_asyncio_clients_work_in_it(secured: Secured) -> None:
    """Every kind of send, a message that is tried again, push, pull, commits and questions."""
    topic = created(secured, "SecuredAsync")
    sent = messages(topic)
    received: list[ReceivedMessage] = []
    tries: list[int] = []
    everything = asyncio.Event()

    async def handle(message: ReceivedMessage) -> None:
        if message.properties["n"] == "7":
            tries.append(message.reconsume_times)
            if message.reconsume_times == 0:
                raise cometmq.RetryLater(1)
        received.append(message)
        if len(received) >= COUNT:
            everything.set()

    async def run() -> None:
        options = secured.without()
        push = cometmq.PushConsumer(
            "G_secured_async", {topic: "täg"}, handle, consume_from="first", **options
        )
        async with push, cometmq.Producer("P_secured_async", **options) as producer:
            for message in sent[:20]:
                await producer.send(message)
            await asyncio.gather(*(producer.send(message) for message in sent[20:35]))
            await producer.send_batch(sent[35:50])
            for message in sent[50:]:
                await producer.send_oneway(message)
            try:
                await asyncio.wait_for(everything.wait(), 60)
            except TimeoutError:
                missing = {m.properties["n"] for m in sent} - {m.properties["n"] for m in received}
                raise AssertionError(f"never came: {missing}; 7 was tried {tries}") from None
        async with cometmq.PullConsumer(
            "L_secured_async", {topic: "*"}, consume_from="first", auto_commit=False, **options
        ) as pull:
            pulled: list[ReceivedMessage] = []
            async with asyncio.timeout(60):
                while len(pulled) < COUNT:
                    pulled += await pull.poll(1000)
            await pull.commit()
            check(pulled, sent)

    asyncio.run(run())
    check(received, sent)
    assert tries == [0, 1]


@pytest.mark.full
def test_sync_clients_work_in_it(secured: Secured) -> None:
    """Synchronous clients and the admin client work over blocking sockets."""
    topic = created(secured, "SecuredSync")
    sent = messages(topic)
    options = secured.without()
    with cometmq.sync.Producer("P_secured_sync", **options) as producer:
        results = [producer.send(message) for message in sent[:20]]
        futures = [producer.send_nowait(message) for message in sent[20:35]]
        results += [future.result(30) for future in futures]
        results += producer.send_batch(sent[35:50])
        for message in sent[50:]:
            producer.send_oneway(message)
    pulled: list[ReceivedMessage] = []
    with cometmq.sync.PullConsumer(
        "L_secured_sync", {topic: "*"}, consume_from="first", auto_commit=False, **options
    ) as pull:
        deadline = time.monotonic() + 60
        while len(pulled) < COUNT and time.monotonic() < deadline:
            pulled += pull.poll(1000)
        pull.commit()
    check(pulled, sent)
    with cometmq.sync.Admin(**options) as admin:
        found = admin.view_message(results[3].offset_message_id, topic)
        assert found.body == sent[3].body
        offsets = admin.group_offsets("L_secured_sync", [topic]).values()
        assert sum(progress.consumer_offset or 0 for progress in offsets) == COUNT


def kept_out(topic: str, options: Mapping[str, Any]) -> dict[str, BaseException]:
    """The error of each kind of asyncio and synchronous client that is refused."""

    async def produce() -> None:
        async with cometmq.Producer("P_out", timeout_ms=10_000, **options) as producer:
            await producer.send(Message(topic, b"x"))

    async def push() -> None:
        async with cometmq.PushConsumer("G_out", {topic: "*"}, lambda _: None, **options):
            pass

    async def pull() -> None:
        async with cometmq.PullConsumer("L_out", {topic: "*"}, **options):
            pass

    async def administer() -> None:
        async with cometmq.Admin(**options) as admin:
            await admin.create_topic("TopicOfAStranger")

    def produce_in_sync() -> None:
        with cometmq.sync.Producer("P_out", timeout_ms=10_000, **options) as producer:
            producer.send(Message(topic, b"x"))

    def administer_in_sync() -> None:
        with cometmq.sync.Admin(**options) as admin:
            admin.create_topic("TopicOfAStranger")

    works: dict[str, Callable[[], None]] = {
        "produce": lambda: asyncio.run(produce()),
        "push": lambda: asyncio.run(push()),
        "pull": lambda: asyncio.run(pull()),
        "administer": lambda: asyncio.run(administer()),
        "produce in sync": produce_in_sync,
        "administer in sync": administer_in_sync,
    }
    errors: dict[str, BaseException] = {}
    for name, work in works.items():
        with pytest.raises(CometError) as raised_error:
            work()
        errors[name] = raised_error.value
    return errors


@pytest.mark.full
@pytest.mark.parametrize("fault", ["wrong secret", "unknown key", "no key"])
def test_who_has_not_the_right_key_is_told_so(secured: Secured, fault: str) -> None:
    """The first request fails with one class of error, which has the server's text."""
    if "access_key" not in secured.options:
        pytest.skip("this cluster asks for certificates, not for keys")
    topic = created(secured, "SecuredKeys")
    options = {
        "wrong secret": secured.without(secret_key="not the secret"),
        "unknown key": secured.without(access_key="somebody-else"),
        "no key": secured.without("access_key", "secret_key"),
    }[fault]
    for client, error in kept_out(topic, options).items():
        assert type(error) is AccessDenied, (client, error)
        assert "check access_key= and secret_key=" in str(error)
    with cometmq.sync.Admin(**secured.without()) as admin:
        assert "TopicOfAStranger" not in admin.topic_list()


@pytest.mark.full
def test_who_may_not_do_this_is_told_so(secured: Secured) -> None:
    """A reader reads its topics and is denied others."""
    if secured.options.get("access_key") is None or "tls" not in secured.options:
        pytest.skip("only the cluster with an ACL file has a second account")
    topic = created(secured, OPEN_TOPIC)
    options = secured.without(**READER)
    with cometmq.sync.Producer("P_reader", **secured.without()) as producer:
        producer.send(Message(topic, b"for readers"))
    with cometmq.sync.PullConsumer(
        "L_reader", {topic: "*"}, consume_from="first", **options
    ) as pull:
        deadline = time.monotonic() + 60
        found: list[ReceivedMessage] = []
        while not found and time.monotonic() < deadline:
            found = list(pull.poll(1000))
    assert [message.body for message in found] == [b"for readers"]
    with (
        cometmq.sync.Producer("P_reader", **options) as producer,
        pytest.raises(AccessDenied, match="check access_key="),
    ):
        producer.send(Message(topic, b"by a reader"))
    with cometmq.sync.Admin(**options) as admin, pytest.raises(AccessDenied):
        admin.create_topic("TopicOfAReader")


@pytest.mark.full
def test_a_server_nobody_vouches_for_is_not_talked_to(secured: Secured) -> None:
    """Another authority, another host name, no TLS: each error names its cause."""
    if "tls" not in secured.options:
        pytest.skip("this cluster speaks plain TCP")
    topic = created(secured, "SecuredTls")
    stranger = Tls(ca_file=secured.certificates.path("stranger.pem"))
    for client, error in kept_out(topic, secured.without(tls=stranger)).items():
        assert type(error) is TlsFailed, (client, error)
        assert "was not accepted: " in str(error)
        assert "ca_file" in str(error)
    host, port = secured.cluster.name_server.split(":")
    assert host == "127.0.0.1"
    other = secured.without(name_server=f"localhost:{port}")
    with cometmq.sync.Admin(**other) as admin, pytest.raises(TlsFailed, match="check_hostname"):
        admin.topic_list()
    for client, error in kept_out(topic, secured.without("tls")).items():
        assert isinstance(error, ConnectFailed), (client, error)
        assert "TLS" in str(error)


@pytest.mark.full
def test_a_client_nobody_vouches_for_is_not_let_in(secured: Secured) -> None:
    """A client without a certificate is refused, and the error says so."""
    if "access_key" in secured.options or "tls" not in secured.options:
        pytest.skip("this cluster does not ask for certificates")
    topic = created(secured, "SecuredCertificates")
    bare = Tls(ca_file=secured.certificates.path("ca.pem"))
    for client, error in kept_out(topic, secured.without(tls=bare)).items():
        assert isinstance(error, ConnectFailed), (client, error)
        assert "certificate" in str(error), (client, error)


@pytest.mark.full
def test_tls_towards_a_plain_port_is_told_so(secured: Secured) -> None:
    """The error says that the server does not speak TLS."""
    if "tls" in secured.options:
        pytest.skip("this cluster speaks TLS")
    # Java's servers take both where nothing is said; ours speak plain TCP, as this port does.
    with cometmq.sync.Admin(**secured.without(tls=Tls(verify=False))) as admin:
        assert "TBW102" in admin.topic_list(include_system=True)
