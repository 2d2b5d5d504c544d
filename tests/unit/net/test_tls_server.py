"""TLS of our servers: who is let in, which files are refused, and certificates that change."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import shlex
import shutil
import socket
import ssl
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.certificates import Authority
from tests.unit.broker.harness import Client, eventually, running
from tests.unit.broker.replication.pair import copied

import cometmq
from cometmq import Message, Tls
from cometmq.broker import load_config
from cometmq.errors import ConfigError, TlsFailed
from cometmq.namesrv import NameServer, load_name_server_config
from cometmq.net import tls_server
from cometmq.net.env import system_environment
from cometmq.net.tls_server import TlsSettings, replication_network, secured, server_context
from cometmq.standalone import Standalone
from cometmq.store.base.disk import RealDisk
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command

EXPIRED = """\
-----BEGIN CERTIFICATE-----
MIIBRTCB66ADAgECAgEBMAoGCCqGSM49BAMCMBIxEDAOBgNVBAMMB2V4cGlyZWQw
HhcNMjAwMTAxMDAwMDAwWhcNMjAwMTAyMDAwMDAwWjASMRAwDgYDVQQDDAdleHBp
cmVkMFkwEwYHKoZIzj0CAQYIKoZIzj0DAQcDQgAEEUkzWTRX+eyQBSqgyUCjcuIw
l3+HZ15aGy4oBceiDc70OCkzSScJSqYQzn5O3xv6A5G30npdctxF3KVHxJ2WwqMy
MDAwDwYDVR0RBAgwBocEfwAAATAdBgNVHQ4EFgQUUUsvnw2/HafQ6YNscF0KWtK8
WiYwCgYIKoZIzj0EAwIDSQAwRgIhAPAUDhK07u91CjgQapczUpGMRhnufKaVFeyt
30nqSzu2AiEA8dV6nTvYqINON84b2+jFTYtO1QLgbihcjwIJ43PX9gE=
-----END CERTIFICATE-----
-----BEGIN PRIVATE KEY-----
MIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQga6hEb+/XCyahcBcZ
dG6sA7lWkyRfi0S8jwmX8TeBUxChRANCAAQRSTNZNFf57JAFKqDJQKNy4jCXf4dn
XlobLigFx6INzvQ4KTNJJwlKphDOfk7fG/oDkbfSel1y3EXcpUfEnZbC
-----END PRIVATE KEY-----
"""


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    """An authority with certificates `server` and `client` for 127.0.0.1."""
    return Authority(tmp_path_factory.mktemp("certificates"))


@pytest.fixture(scope="module")
def server(authority: Authority) -> dict[str, str]:
    """The two keys of a broker's own certificate."""
    cert, key = authority.sign("server")
    return {"tls.server.certPath": cert, "tls.server.keyPath": key}


@pytest.fixture(scope="module")
def client(authority: Authority) -> tuple[str, str]:
    """Files of a client's certificate and key."""
    return authority.sign("client")


def settings(**keys: Any) -> TlsSettings:
    """Settings by RocketMQ's keys, with `_` for dots."""
    return msgspec.convert(
        {key.replace("_", "."): value for key, value in keys.items()}, TlsSettings
    )


def cluster(folder: Path, keys: dict[str, Any]) -> Standalone:
    """A name server and a broker in one process, on free ports."""
    overrides = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "brokerIP1": "127.0.0.1",
        "storePathRootDir": str(folder),
        "mappedFileSizeCommitLog": 1 << 20,
        **keys,
    }
    config = load_config(overrides=overrides, environment={}).config
    return Standalone(config, name_server_port=0)


async def exchanged(address: str, tls: Tls | None) -> bytes:
    """Send a message to a cluster and receive it again."""
    options: dict[str, Any] = {"name_server": address, "tls": tls or False}
    async with cometmq.Producer("p", **options) as producer:
        result = await producer.send(Message("T", b"a secret"))
    async with cometmq.PullConsumer("g", **options) as consumer:
        await consumer.assign([result.message_queue])
        await consumer.seek(result.message_queue, result.queue_offset or 0)
        (message,) = await consumer.poll(30_000)
        return message.body


async def is_cut(address: str, tls: Tls | None) -> bool:
    """Whether the server ends a connection before it answers a request."""
    host, port = address.split(":")
    context = tls.context() if tls else None
    reader, writer = await asyncio.open_connection(host, int(port), ssl=context)
    try:
        writer.write(encode_command(RemotingCommand.request(RequestCode.GET_NAMESRV_CONFIG)))
        return await reader.read(1) == b""
    except (ssl.SSLError, ConnectionError):
        return True
    finally:
        writer.close()


def with_cluster(folder: Path, keys: dict[str, Any], story: Callable[[Standalone], Any]) -> None:
    """Run a story against a cluster."""

    async def main() -> None:
        servers = cluster(folder, keys)
        await servers.start()
        try:
            await story(servers)
        finally:
            await servers.stop()

    asyncio.run(main())


def test_one_port_serves_both(tmp_path: Path, authority: Authority, server: dict[str, str]) -> None:
    """A permissive broker and name server serve plain clients and clients with TLS."""

    async def story(servers: Standalone) -> None:
        address = servers.name_server_address
        assert await exchanged(address, None) == b"a secret"
        assert await exchanged(address, Tls(ca_file=authority.ca)) == b"a secret"

    with_cluster(tmp_path, server, story)


def test_an_enforcing_server_refuses_plain_clients(
    tmp_path: Path,
    authority: Authority,
    server: dict[str, str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """And a client that does not know the authority refuses the server."""
    stranger = Authority(tmp_path, "stranger").ca

    async def story(servers: Standalone) -> None:
        address = servers.name_server_address
        assert await exchanged(address, Tls(ca_file=authority.ca)) == b"a secret"
        assert await is_cut(address, None)
        assert not await is_cut(address, Tls(ca_file=authority.ca))
        assert "it does not speak TLS, which this port demands" in caplog.text
        with pytest.raises(TlsFailed, match="give the authority that signed it"):
            await exchanged(address, Tls(ca_file=stranger))
        with pytest.raises(TlsFailed, match="does not name this host"):
            await exchanged(address.replace("127.0.0.1", "localhost"), Tls(ca_file=authority.ca))

    own = {"tls.enable": True, "tls.client.trustCertPath": authority.ca}
    with_cluster(tmp_path / "s", {**server, "tls.server.mode": "enforcing", **own}, story)


def test_clients_show_certificates(
    tmp_path: Path, authority: Authority, server: dict[str, str], client: tuple[str, str]
) -> None:
    """A server that requires certificates refuses clients without one, or with a stranger's."""
    others = tmp_path / "others"
    others.mkdir()
    stranger = Authority(others, "stranger").sign("someone")

    async def story(servers: Standalone) -> None:
        address = servers.name_server_address
        ca = authority.ca
        assert await exchanged(address, Tls(ca, *client)) == b"a secret"
        assert not await is_cut(address, Tls(ca, *client))
        assert await is_cut(address, Tls(ca))
        assert await is_cut(address, Tls(ca, *stranger))

    keys = {
        **server,
        "tls.server.mode": "enforcing",
        "tls.server.need.client.auth": "require",
        "tls.server.authClient": True,
        "tls.server.trustCertPath": authority.ca,
        "tls.enable": True,
        "tls.client.trustCertPath": authority.ca,
        "tls.client.certPath": client[0],
        "tls.client.keyPath": client[1],
    }
    with_cluster(tmp_path / "s", keys, story)


def test_a_changed_certificate_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """New connections meet the new one; a key that does not fit leaves the old one in force."""
    monkeypatch.setattr(tls_server, "RELOAD_INTERVAL_S", 0.01)
    caplog.set_level(logging.INFO, "cometmq.net")
    folders = [tmp_path / name for name in ("old", "new", "used")]
    for folder in folders:
        folder.mkdir()
    old, new, used = folders
    before, after = Authority(old), Authority(new)
    for authority in (before, after):
        authority.sign("server")

    def install(folder: Path, *names: str) -> None:
        for name in names:
            fresh = used / f"{name}.new"
            fresh.write_bytes((folder / name).read_bytes())
            fresh.replace(used / name)

    install(old, "server.pem", "server.key")

    async def story(servers: Standalone) -> None:
        address = servers.name_server_address
        async with cometmq.Producer(
            "p", name_server=address, tls=Tls(ca_file=before.ca)
        ) as producer:
            await producer.send(Message("T", b"1"))
            install(new, "server.pem")
            # Name server and broker look after the files on their own.
            await eventually(lambda: caplog.text.count("the TLS certificate in force stays") >= 2)
            assert await exchanged(address, Tls(ca_file=before.ca)) == b"a secret"
            install(new, "server.key")
            await eventually(lambda: caplog.text.count("was read again") == 2)
            assert await exchanged(address, Tls(ca_file=after.ca)) == b"a secret"
            with pytest.raises(TlsFailed):
                await exchanged(address, Tls(ca_file=before.ca))
            await producer.send(Message("T", b"2"))

    keys = {
        "tls.server.certPath": str(used / "server.pem"),
        "tls.server.keyPath": str(used / "server.key"),
    }
    with_cluster(tmp_path / "s", keys, story)


def test_odd_peers(
    tmp_path: Path, server: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """Peers that leave at once, stay silent or break the handshake hurt nobody."""

    async def story(servers: Standalone) -> None:
        _, port = servers.name_server_address.split(":")
        loop = asyncio.get_running_loop()

        def connected() -> socket.socket:
            return socket.create_connection(("127.0.0.1", int(port)), timeout=10)

        (await loop.run_in_executor(None, connected)).close()
        with await loop.run_in_executor(None, connected) as silent:
            with await loop.run_in_executor(None, connected) as broken:
                broken.sendall(b"\x16" + b"nonsense" * 100)
                with contextlib.suppress(ConnectionResetError):
                    while await loop.run_in_executor(None, broken.recv, 4096):
                        pass
            await eventually(lambda: "refused: TLS handshake" in caplog.text)
            assert await exchanged(servers.name_server_address, None) == b"a secret"
            servers.name_server._server.stop_listening()
            assert await loop.run_in_executor(None, silent.recv, 1) == b""

    with_cluster(tmp_path, server, story)


def test_replicas_follow_over_tls(
    tmp_path: Path, authority: Authority, server: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """With haTls the port for slaves serves no plain peer; the name server demands TLS too."""

    async def main() -> None:
        keys = {
            **server,
            "tls.server.mode": "enforcing",
            "tls.enable": True,
            "tls.client.trustCertPath": authority.ca,
        }
        loaded = load_name_server_config(
            overrides={
                **keys,
                "listenPort": 0,
                "bindAddress": "127.0.0.1",
                "kvConfigPath": str(tmp_path / "kv.json"),
                "configStorePath": str(tmp_path / "namesrv.conf"),
            }
        )
        names = NameServer(loaded.config, system_environment(), RealDisk())
        await names.start()
        shared = {**keys, "namesrvAddr": names.address, "haTls": True}
        slave_keys = {"brokerRole": "SLAVE", "brokerId": 1}
        try:
            async with (
                running(tmp_path / "m", brokerRole="ASYNC_MASTER", **shared) as master,
                running(tmp_path / "s", **slave_keys, **shared) as slave,
            ):
                raw = await Client(master.env, master.address).open()
                assert (await raw.send(b"copied")).code == 0
                await copied(master, slave)
                await raw.close()
                assert master.replicas is not None
                reader, writer = await asyncio.open_connection("127.0.0.1", master.replicas.port)
                writer.write(bytes(8))
                with contextlib.suppress(ConnectionResetError):
                    assert await reader.read() == b""
                writer.close()
                assert "it does not speak TLS" in caplog.text
        finally:
            await names.stop()

    asyncio.run(main())


def test_files_that_cannot_serve(
    tmp_path: Path, authority: Authority, server: dict[str, str], client: tuple[str, str]
) -> None:
    """The start ends with the key of the setting, the cause and the remedy."""
    expired = tmp_path / "expired.pem"
    expired.write_text(EXPIRED, "ascii")
    cert, key = server.values()
    for keys, text in (
        ({"certPath": str(expired)}, "certificate has expired; clients would refuse"),
        ({"certPath": cert, "keyPath": client[1]}, "name PEM files of a certificate and of its"),
        ({"certPath": str(tmp_path / "none"), "keyPath": key}, "No such file"),
        (
            {
                "certPath": cert,
                "keyPath": key,
                "need.client.auth": "optional",
                "trustCertPath": str(tmp_path / "none"),
            },
            "tls.server.trustCertPath=.*No such file",
        ),
    ):
        given = {f"tls.server.{name}": value for name, value in keys.items()}
        with pytest.raises(ConfigError, match=text):
            server_context(msgspec.convert(given, TlsSettings))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tls.server.mode=enforcing", "needs a certificate: set tls.server.certPath"),
        ("tls.server.keyPath=k.pem", "needs tls.server.certPath"),
        ("tls.server.need.client.auth=require", "needs tls.server.certPath and"),
        ("tls.server.authClient=true", "verifies nobody"),
        ("tls.test.mode.enable=true", "protects from nobody"),
        ("tls.ciphers=x", "the system's choice holds"),
        ("tls.server.mode=open", "expected"),
    ],
)
def test_incomplete_settings(tmp_path: Path, text: str, message: str) -> None:
    """Both servers refuse them, from a file and from RocketMQ's file of TLS settings."""
    (tmp_path / "tls.properties").write_text(f"{text}\n", "ascii")
    main = tmp_path / "main.conf"
    main.write_text(f"tls.config.file={tmp_path}/tls.properties\n", "ascii")
    with pytest.raises(ConfigError, match=message):
        load_config(str(main), environment={})
    with pytest.raises(ConfigError, match=message):
        load_name_server_config(str(main))


def test_settings_of_the_tls_file_win(tmp_path: Path) -> None:
    """As in RocketMQ; a key of something else is refused there."""
    tls = tmp_path / "tls.properties"
    tls.write_text("tls.server.mode=disabled\n", "ascii")
    main = tmp_path / "main.conf"
    main.write_text(f"tls.config.file={tls}\ntls.server.mode=permissive\n", "ascii")
    assert load_config(str(main), environment={}).config.tls_server_mode == "disabled"
    assert load_name_server_config(str(main)).config.tls_server_mode == "disabled"
    tls.write_text("brokerName=b\n", "ascii")
    with pytest.raises(ConfigError, match=r"brokerName .* is no key of TLS"):
        load_config(str(main), environment={})


def test_passwords_are_never_shown() -> None:
    """GET_BROKER_CONFIG and GET_NAMESRV_CONFIG list every key but them."""
    keys = {"tls.server.certPath": "c", "tls.server.keyPassword": "hidden"}
    broker = load_config(overrides=keys, environment={}).config
    names = load_name_server_config(overrides=keys).config
    for text in (broker.properties_text(), names.properties_text()):
        assert "tls.server.certPath=c" in text
        assert "hidden" not in text


def test_tls_is_not_simulated() -> None:
    """A simulated network cannot encrypt, so it refuses the settings."""

    class Simulated:
        """A network without sockets."""

    env = system_environment()
    object.__setattr__(env, "network", Simulated())
    assert secured(env, TlsSettings()) is env
    with pytest.raises(ConfigError, match="TLS needs real sockets"):
        secured(env, TlsSettings(tls_enable=True))
    with pytest.raises(ConfigError, match="haTls=true needs TLS"):
        replication_network(env.network, is_encrypted=True)


def test_a_cluster_in_one_process_must_reach_its_own_name_server(
    tmp_path: Path, server: dict[str, str]
) -> None:
    """An enforcing name server and a broker that connects in clear text do not fit together."""
    with pytest.raises(ConfigError, match=r"set tls\.enable=true"):
        cluster(tmp_path, {**server, "tls.server.mode": "enforcing"})


def test_the_commands_of_the_page_make_a_certificate_that_serves(tmp_path: Path) -> None:
    """docs/how-to/encrypt-connections.md."""
    if shutil.which("openssl") is None:
        pytest.skip("openssl is not installed")
    root = Path(__file__).resolve().parents[3]
    page = (root / "docs" / "how-to" / "encrypt-connections.md").read_text("utf-8")
    commands = [line for line in page.splitlines() if line.startswith("openssl ")]
    assert len(commands) == 2
    for command in commands:
        subprocess.run(
            shlex.split(command), cwd=tmp_path, check=True, capture_output=True, timeout=60
        )
    keys = {
        "tls.server.certPath": f"{tmp_path}/server.pem",
        "tls.server.keyPath": f"{tmp_path}/server.key",
    }

    async def story(servers: Standalone) -> None:
        tls = Tls(ca_file=f"{tmp_path}/ca.pem")
        assert await exchanged(servers.name_server_address, tls) == b"a secret"

    with_cluster(tmp_path / "s", keys, story)
