"""One contract for every store of a controller's documents: file, etcd, and the simulated etcd."""

from __future__ import annotations

import asyncio
import shutil
import socket
import subprocess
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import TypeAlias

import pytest
from interop.servers import free_port
from tests.certificates import Authority

from cometmq.controller.stores.base import DocumentStore, StoredDocument
from cometmq.controller.stores.etcd import LEASE_S, EtcdStore, to_base64
from cometmq.controller.stores.file import FILE, FileStore
from cometmq.controller.stores.gateway import EtcdGateway
from cometmq.errors import (
    ControllerError,
    DocumentChanged,
    LeadershipLost,
    StoreCorrupt,
    StoreLocked,
)
from cometmq.net.env import ThreadWorkers
from cometmq.net.tls import Tls
from cometmq.store.base.disk import RealDisk
from cometmq.testing.sim_etcd import SimEtcd
from cometmq.testing.simulation import simulate

Open: TypeAlias = Callable[[], DocumentStore]


async def check_contract(open_store: Open) -> None:
    """What a controller relies on."""
    store = open_store()
    await store.open()
    assert await store.leader() is None
    leadership = await store.lead("a:1")
    assert await store.leader() == "a:1"
    assert await leadership.read_all() == {}
    first = await leadership.swap("b/1 é", 0, b"one")
    second = await leadership.swap("b/1 é", first, b"two")
    assert second > first > 0
    with pytest.raises(DocumentChanged):
        await leadership.swap("b/1 é", first, b"three")
    with pytest.raises(DocumentChanged):
        await leadership.swap("b/1 é", 0, b"three")
    with pytest.raises(DocumentChanged):
        await leadership.swap("other", second, b"x")
    other = await leadership.swap("other", 0, b"")
    assert await leadership.read_all() == {
        "b/1 é": StoredDocument(b"two", second),
        "other": StoredDocument(b"", other),
    }
    await leadership.swap("other", other, None)
    assert await leadership.read_all() == {"b/1 é": StoredDocument(b"two", second)}
    again = await leadership.swap("other", 0, b"again")
    assert again > second
    await leadership.resign()
    await leadership.ended()
    with pytest.raises(LeadershipLost):
        await leadership.swap("b/1 é", second, b"late")
    await store.close()

    next_store = open_store()
    assert await next_store.leader() is None
    next_leadership = await next_store.lead("b:1")
    assert await next_leadership.read_all() == {
        "b/1 é": StoredDocument(b"two", second),
        "other": StoredDocument(b"again", again),
    }
    assert await next_leadership.swap("other", again, b"more") > again
    await next_store.close()


# -- a local file -----------------------------------------------------------------------------


def open_file(folder: Path) -> FileStore:
    """A store in a folder, with workers of its own."""
    return FileStore(str(folder), RealDisk(), ThreadWorkers())


def test_a_file_keeps_the_contract(tmp_path: Path) -> None:
    """The documents of one process."""
    asyncio.run(check_contract(lambda: open_file(tmp_path / "c")))


def test_a_second_controller_is_locked_out(tmp_path: Path) -> None:
    """So two processes never write one file."""

    async def main() -> None:
        first = open_file(tmp_path)
        await first.lead("a:1")
        with pytest.raises(StoreLocked):
            await open_file(tmp_path).open()
        await first.close()

    asyncio.run(main())


def test_a_spoilt_file_is_refused_and_left_alone(tmp_path: Path) -> None:
    """The error names the file and the way out, and the folder is not locked by it."""
    path = tmp_path / FILE
    path.write_bytes(b"{")

    async def main() -> None:
        for _ in range(2):
            with pytest.raises(StoreCorrupt, match="restore it from a copy"):
                await open_file(tmp_path).open()

    asyncio.run(main())
    assert path.read_bytes() == b"{"


def test_a_change_that_is_not_written_is_not_made(tmp_path: Path) -> None:
    """A file that cannot be written leaves the documents as they were."""

    async def main() -> None:
        store = open_file(tmp_path / "c")
        leadership = await store.lead("a:1")
        revision = await leadership.swap("b", 0, b"one")
        (tmp_path / "c" / FILE).unlink()
        (tmp_path / "c" / FILE).mkdir()
        with pytest.raises(ControllerError, match="was not written"):
            await leadership.swap("b", revision, b"two")
        assert await leadership.read_all() == {"b": StoredDocument(b"one", revision)}
        await store.close()

    asyncio.run(main())


# -- etcd, simulated and real -----------------------------------------------------------------


def on_virtual_time(
    scenario: Callable[[SimEtcd, asyncio.AbstractEventLoop], Awaitable[None]],
) -> None:
    """Run a scenario with an etcd in memory, on virtual time."""

    async def main(world: object) -> None:
        loop = asyncio.get_running_loop()
        await scenario(SimEtcd(loop.time, lateness_s=0.7), loop)

    simulate(1, main)


def test_the_simulated_etcd_keeps_the_contract() -> None:
    """The same client as for a real one."""
    on_virtual_time(lambda etcd, loop: check_contract(lambda: EtcdStore(etcd.call, "x")))


@asynccontextmanager
async def leaders(etcd: SimEtcd) -> AsyncIterator[tuple[EtcdStore, EtcdStore]]:
    """Two controllers' stores."""
    stores = EtcdStore(etcd.call, "x"), EtcdStore(etcd.call, "x")
    yield stores
    for store in stores:
        await store.close()


def test_a_deposed_leader_records_nothing() -> None:
    """However long it slept: etcd compares, no clock does.  Its successor waits for the lease."""

    async def scenario(etcd: SimEtcd, loop: asyncio.AbstractEventLoop) -> None:
        async with leaders(etcd) as (first, second):
            old = await first.lead("a:1")
            revision = await old.swap("b", 0, b"one")
            old._renewing.cancel()  # the process sleeps
            began = loop.time()
            new = await second.lead("b:1")
            assert LEASE_S <= loop.time() - began < LEASE_S + 2
            assert await first.leader() == "b:1"
            with pytest.raises(LeadershipLost):
                await old.swap("b", revision, b"late")
            await asyncio.wait_for(old.ended(), 1)
            assert (await new.read_all())["b"] == StoredDocument(b"one", revision)

    on_virtual_time(scenario)


def test_a_leader_keeps_its_lease_and_resigns_at_once() -> None:
    """The next one leads within a look, not after the lease."""

    async def scenario(etcd: SimEtcd, loop: asyncio.AbstractEventLoop) -> None:
        async with leaders(etcd) as (first, second):
            old = await first.lead("a:1")
            waiting = asyncio.create_task(second.lead("b:1"))
            await asyncio.sleep(10 * LEASE_S)
            assert not waiting.done()
            await old.swap("b", 0, b"one")
            began = loop.time()
            await old.resign()
            await waiting
            assert loop.time() - began < 1

    on_virtual_time(scenario)


def test_a_leader_without_etcd_stops_before_its_lease_ends() -> None:
    """It cannot know whether another one leads; when etcd is back, it campaigns again."""

    async def scenario(etcd: SimEtcd, loop: asyncio.AbstractEventLoop) -> None:
        async with leaders(etcd) as (first, _):
            old = await first.lead("a:1")
            etcd.is_away = True
            began = loop.time()
            await asyncio.wait_for(old.ended(), 60)
            assert loop.time() - began < LEASE_S
            with pytest.raises(LeadershipLost):
                await old.swap("b", 0, b"one")
            waiting = asyncio.create_task(first.lead("a:1"))
            await asyncio.sleep(60)
            etcd.is_away = False
            assert (await waiting).read_all is not None
            assert await first.leader() == "a:1"

    on_virtual_time(scenario)


def test_a_lost_answer_leaves_one_document() -> None:
    """The change is made, its repeat is refused by the compares, and a look shows it."""

    async def scenario(etcd: SimEtcd, loop: asyncio.AbstractEventLoop) -> None:
        async with leaders(etcd) as (first, _):
            leadership = await first.lead("a:1")
            etcd.answers_to_lose = 1
            with pytest.raises(ControllerError):
                await leadership.swap("b", 0, b"one")
            with pytest.raises(DocumentChanged):
                await leadership.swap("b", 0, b"one")
            assert (await leadership.read_all())["b"].data == b"one"

    on_virtual_time(scenario)


def test_a_campaign_whose_answer_is_lost_ends_with_its_lease() -> None:
    """A controller does not lead unless etcd said so."""

    async def scenario(etcd: SimEtcd, loop: asyncio.AbstractEventLoop) -> None:
        async with leaders(etcd) as (first, _):
            etcd.answers_to_lose = 1
            began = loop.time()
            await first.lead("a:1")
            assert loop.time() - began > LEASE_S

    on_virtual_time(scenario)


@contextmanager
def real_etcd(folder: Path, scheme: str = "http", *options: str) -> Iterator[str]:
    """A real etcd of one member, from Debian's package etcd-server."""
    program = shutil.which("etcd")
    if program is None:
        pytest.skip("etcd is not installed: apt-get install etcd-server")
    client, peer = f"{scheme}://127.0.0.1:{free_port()}", f"http://127.0.0.1:{free_port()}"
    process = subprocess.Popen(
        [
            *(program, "--data-dir", str(folder / "etcd"), "--name", "n", *options),
            *("--listen-client-urls", client, "--advertise-client-urls", client),
            *("--listen-peer-urls", peer, "--initial-advertise-peer-urls", peer),
            *("--initial-cluster", f"n={peer}"),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield client
    finally:
        process.kill()
        process.wait()


@pytest.fixture
def etcd_address(tmp_path: Path) -> Iterator[str]:
    """A real etcd that asks for nothing."""
    with real_etcd(tmp_path) as address:
        yield address


def gateway(*endpoints: str, tls: Tls = Tls(), user: str = "", password: str = "") -> EtcdGateway:  # noqa: B008
    """A client of one etcd, with the patience that a busy machine needs."""
    return EtcdGateway(endpoints, tls=tls, user=user, password=password, timeout_s=30)


async def until_it_answers(etcd: EtcdGateway) -> None:
    """Wait until a starting etcd has elected itself."""
    async with asyncio.timeout(60):
        while True:
            try:
                await etcd.call("kv/range", {"key": "eA=="})
                return
            except ControllerError:
                await asyncio.sleep(0.05)


@pytest.mark.processes
def test_a_real_etcd_keeps_the_contract(etcd_address: str) -> None:
    """Over HTTP, with a member in front that does not answer; then a deposed leader's write."""

    async def main() -> None:
        probe = gateway(etcd_address)
        await until_it_answers(probe)
        # A bound port that nobody listens at refuses connections.
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            nobody = f"http://127.0.0.1:{closed.getsockname()[1]}"

            def open_store() -> EtcdStore:
                etcd = gateway(nobody, etcd_address)
                return EtcdStore(etcd.call, "contract", etcd.close)

            await check_contract(open_store)
        store = EtcdStore(probe.call, "deposed")
        old = await store.lead("a:1")
        revision = await old.swap("b", 0, b"one")
        # As if the lease had ended: the key of the leader is gone, and another one leads.
        await probe.call("lease/revoke", {"ID": old._lease})
        new = await EtcdStore(probe.call, "deposed").lead("b:1")
        with pytest.raises(LeadershipLost):
            await old.swap("b", revision, b"late")
        assert (await new.read_all())["b"].data == b"one"
        with pytest.raises(ControllerError, match="etcd refuses lease/revoke: 404"):
            await probe.call("lease/revoke", {"ID": old._lease})
        await new.resign()
        await probe.close()

    asyncio.run(main())


async def demand_users(root: EtcdGateway) -> None:
    """Have etcd ask for passwords, with a user for the keys of controllers alone."""
    for path, body in (
        ("user/add", {"name": "root", "password": "secret of root"}),
        ("user/grant", {"user": "root", "role": "root"}),
        ("role/add", {"name": "cometmq"}),
        (
            "role/grant",
            {
                "name": "cometmq",
                "perm": {
                    "permType": "READWRITE",
                    "key": to_base64("/cometmq/"),
                    "range_end": to_base64("/cometmq0"),
                },
            },
        ),
        ("user/add", {"name": "cometmq", "password": "secret"}),
        ("user/grant", {"user": "cometmq", "role": "cometmq"}),
        ("enable", {}),
    ):
        await root.call(f"auth/{path}", body)


@pytest.mark.processes
def test_a_real_etcd_with_users_and_certificates(tmp_path: Path) -> None:
    """The contract holds for a user who may touch `/cometmq/` only, over TLS with certificates of
    both sides; a changed user list costs no leadership, and the errors say what is wrong."""
    authority = Authority(tmp_path)
    cert, key = authority.sign("server")
    # etcd's gateway refuses certificates with a common name where it asks for passwords.
    own, own_key = authority.sign("controller", subject="/O=controllers")
    tls = Tls(ca_file=authority.ca, cert_file=own, key_file=own_key)
    options = ("--cert-file", cert, "--key-file", key, "--trusted-ca-file", authority.ca)

    async def main(address: str) -> None:
        open_one = gateway(address, tls=tls)
        await until_it_answers(open_one)
        await demand_users(open_one)
        with pytest.raises(
            ControllerError, match=r"etcd refuses kv/range: 400 .*user name is empty"
        ):
            await open_one.call("kv/range", {"key": "eA=="})
        guessing = gateway(address, tls=tls, user="cometmq", password="guessed")
        with pytest.raises(ControllerError, match="etcd does not let user cometmq in: 400"):
            await guessing.call("kv/range", {"key": "eA=="})
        stranger = gateway(
            address, tls=Tls(ca_file=authority.ca), user="cometmq", password="secret"
        )
        with pytest.raises(ControllerError, match="no member of etcd has answered"):
            await stranger.call("kv/range", {"key": "eA=="})

        def log_in() -> EtcdGateway:
            return gateway(address, tls=tls, user="cometmq", password="secret")

        def open_store() -> EtcdStore:
            etcd = log_in()
            return EtcdStore(etcd.call, "contract", etcd.close)

        await check_contract(open_store)
        bound = log_in()
        with pytest.raises(ControllerError, match="permission denied"):
            await bound.call("kv/range", {"key": to_base64("other")})
        leadership = await EtcdStore(bound.call, "changed").lead("a:1")
        root = gateway(address, tls=tls, user="root", password="secret of root")
        await root.call("auth/user/add", {"name": "another", "password": "x"})
        assert await leadership.swap("b", 0, b"one") > 0
        await leadership.resign()
        for each in (open_one, guessing, stranger, bound, root):
            await each.close()

    with real_etcd(tmp_path, "https", "--client-cert-auth", *options) as address:
        asyncio.run(main(address))


def test_an_etcd_that_is_not_there_says_which_members_were_asked() -> None:
    """Nobody has to guess the address."""

    async def main() -> None:
        with socket.socket() as closed:
            closed.bind(("127.0.0.1", 0))
            address = f"http://127.0.0.1:{closed.getsockname()[1]}"
            etcd = gateway(address)
            with pytest.raises(ControllerError, match=f"no member of etcd .*{address}"):
                await etcd.call("kv/range", {"key": "eA=="})
            await etcd.close()

    asyncio.run(main())
