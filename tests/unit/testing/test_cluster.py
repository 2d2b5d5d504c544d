"""The embedded cluster is a real one: clients connect, stores persist, the fixture works."""

import asyncio
import subprocess
import sys
from pathlib import Path

import pytest
from tests.raw_client import PeerClosed, RawClient

from cometmq.client.producer.producer import Producer
from cometmq.errors import ConfigError
from cometmq.model import Message, SendStatus
from cometmq.testing.cluster import embedded_cluster, threaded_cluster


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


def test_the_pytest_fixture(tmp_path: Path) -> None:
    """A test file of a user, run by a pytest of its own."""
    (tmp_path / "conftest.py").write_text('pytest_plugins = ["cometmq.testing.pytest_plugin"]\n')
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
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
    )
    assert "1 passed" in done.stdout, done.stdout + done.stderr
