"""The embedded cluster is a real one: clients connect, stores persist, the fixture works."""

import asyncio
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from tests.raw_client import PeerClosed, RawClient

import cometmq
import cometmq.sync
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import ConfigError
from cometmq.model import Message, SendStatus
from cometmq.testing.cluster import embedded_cluster, threaded_cluster

ROOT = Path(__file__).resolve().parents[3]
PYTEST = [sys.executable, "-m", "pytest", "-p", "cometmq.pytest_plugin"]
"""The plugin is named in case that this environment installed the package before it had one."""
RETRIES_S = (10, 30, 60, 120, 180, 240, 300, 360, 420, 480, 540, 600, 1200, 1800, 3600, 7200)


def test_a_client_finds_its_way_through_the_name_server() -> None:
    """Name server, route, broker, store: all of it on one event loop."""

    async def main() -> tuple[SendStatus, str]:
        async with (
            embedded_cluster({"defaultTopicQueueNums": 2}) as cluster,
            Producer("group", name_server=cluster.name_server_address) as producer,
        ):
            result = await producer.send(Message("Embedded", b"body"))
            return result.status, cluster.store_path

    status, store_path = asyncio.run(main())
    assert status is SendStatus.SEND_OK
    assert not Path(store_path).exists()


def test_a_store_that_is_kept_is_found_again(tmp_path: Path) -> None:
    """The next cluster on the same directory continues it."""
    send = {
        "a": "p",
        "b": "Kept",
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "0",
        "g": "1",
        "h": "0",
        "i": "",
    }
    queue_offsets = []
    for _ in range(3):
        with (
            threaded_cluster(store_path=str(tmp_path)) as cluster,
            RawClient(cluster.broker_address) as client,
        ):
            queue_offsets.append(client.call(310, send, b"body").ext_fields["queueOffset"])
    assert queue_offsets == ["0", "1", "2"]


def test_a_failed_start_is_raised_where_it_was_asked_for() -> None:
    """Also when it happens in the background thread."""
    with (
        pytest.raises(ConfigError, match="fileReservedTime"),
        threaded_cluster({"fileReservedTime": 0}),
    ):
        pytest.fail("the cluster started")


def test_stopping_closes_connections() -> None:
    """A client that is still there is told."""
    with threaded_cluster() as cluster:
        client = RawClient(cluster.broker_address)
        assert client.call(9999).code == 3
    with pytest.raises(PeerClosed):
        client.receive()
    client.close()


def test_the_package_brings_the_plugin() -> None:
    """By an entry point with the name of its module, so that `-p` names the same plugin."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    points = project["entry-points"]["pytest11"]
    assert points == {"cometmq.pytest_plugin": "cometmq.pytest_plugin"}
    code = (
        "import sys, cometmq.pytest_plugin; "
        "print(*{name.split('.')[1] for name in sys.modules if name.startswith('cometmq.')})"
    )
    loaded = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert "broker" not in loaded.stdout
    assert "testing" not in loaded.stdout


def test_sixteen_retries_take_moments() -> None:
    """Nearly five hours by the broker's clock; the client stays connected."""
    tries: list[int] = []

    def handle(message: ReceivedMessage) -> None:
        tries.append(message.reconsume_times)
        raise ValueError("not this time")

    with threaded_cluster() as cluster:
        address = cluster.name_server_address
        with (
            cometmq.sync.Producer("shop", name_server=address) as producer,
            cometmq.sync.PushConsumer(
                "ship", {"Orders": "*"}, handle, name_server=address, consume_from="first"
            ),
        ):
            producer.send(Message("Orders", b"1"))
            began_ms = cluster.clock.now_ms()
            cluster.until(lambda: len(tries) == 17, 60)
            passed_ms = cluster.clock.now_ms() - began_ms
        assert tries == list(range(17))
        assert passed_ms >= sum(RETRIES_S) * 1000


def test_a_timed_message_comes_when_its_time_has_passed() -> None:
    """In a test on the cluster's own loop."""

    async def main() -> list[bytes]:
        handled: list[bytes] = []
        came = asyncio.Event()

        async def handle(message: ReceivedMessage) -> None:
            handled.append(message.body)
            came.set()

        async with embedded_cluster() as cluster:
            address = cluster.name_server_address
            async with (
                Producer("shop", name_server=address) as producer,
                cometmq.PushConsumer(
                    "ship", {"Orders": "*"}, handle, name_server=address, consume_from="first"
                ),
            ):
                due_ms = cluster.clock.now_ms() + 3_600_000
                await producer.send(Message("Orders", b"1", deliver_time_ms=due_ms))
                cluster.pass_time(3_000)
                assert handled == []
                cluster.pass_time(601)
                await asyncio.wait_for(came.wait(), 30)
        return handled

    assert asyncio.run(main()) == [b"1"]


def test_the_pytest_fixture(tmp_path: Path) -> None:
    """A test file of a user, run by a pytest of its own."""
    (tmp_path / "test_user.py").write_text(
        "import pytest\n"
        "from cometmq.sync import Admin\n\n"
        "@pytest.fixture\n"
        "def cometmq_settings():\n"
        '    return {"brokerName": "broker-x"}\n\n'
        "def test_cluster(cometmq_cluster):\n"
        "    with Admin(name_server=cometmq_cluster.name_server_address) as admin:\n"
        '        assert "broker-x" in str(admin.cluster_info())\n'
    )
    done = subprocess.run(
        [*PYTEST, "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
