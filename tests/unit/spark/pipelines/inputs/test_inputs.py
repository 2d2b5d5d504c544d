"""Addresses of sources, durations, and tables that are not what they should be."""

from __future__ import annotations

from pathlib import Path

import pyarrow
import pytest
from pyarrow import parquet

from cometmq.errors import ConfigError, NoRoute, StoreCorrupt, StoreError
from cometmq.model.message import Message
from cometmq.model.queue import MessageQueue
from cometmq.net.tls import Tls
from cometmq.spark.base.reach import Extent
from cometmq.spark.pipelines.archive.manifest import ArchiveFile, FileRange
from cometmq.spark.pipelines.cdc.table import ParquetTable, current_snapshot
from cometmq.spark.pipelines.inputs.address import Address, parse_address
from cometmq.spark.pipelines.inputs.extents import archive_ranges, check_input
from cometmq.spark.pipelines.inputs.frames import live_options
from cometmq.spark.pipelines.reconcile.differences import duration_s
from cometmq.spark.pipelines.reconcile.findings import Reconciling, check_out
from cometmq.sync import Admin, Producer
from cometmq.testing import threaded_cluster


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("topic:Orders", Address("topic", "Orders")),
        ("store:/var/store#%RETRY%g", Address("store", "/var/store", "%RETRY%g")),
        ("jdbc:derby:/data/shop#ORDERS", Address("jdbc", "jdbc:derby:/data/shop", "ORDERS")),
        ("parquet:s3a://bucket/a", Address("parquet", "s3a://bucket/a")),
        ("/data/a:b", Address("parquet", "/data/a:b")),
        ("data", Address("parquet", "data")),
    ],
)
def test_addresses(text: str, address: Address) -> None:
    """A kind and a place; a bare path is Parquet."""
    assert parse_address(text) == address


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("topik:Orders", "did you mean topic:Orders?"),
        ("zzz:Orders", "The kinds are topic:, store:,"),
        ("store:/var/store", "write store:DIR#TOPIC"),
        ("jdbc:derby:x", "write jdbc:derby:/data/shop#ORDERS"),
        ("topic:", "names no location: write topic:SOMETHING"),
    ],
)
def test_wrong_addresses_say_what_to_write(text: str, said: str) -> None:
    """The nearest kind, or the missing part."""
    with pytest.raises(ConfigError) as failure:
        parse_address(text)
    assert said in str(failure.value)


def test_a_missing_place_is_found_before_spark_starts(tmp_path: Path) -> None:
    """No session is needed to see that a file is not there."""
    with pytest.raises(ConfigError, match="there is no such file or directory"):
        check_input(Address("parquet", str(tmp_path / "none")), "127.0.0.1:1")


LATER_MS = 4_000_000_000_000


def test_what_an_input_holds_is_known_before_spark_starts(tmp_path: Path) -> None:
    """A topic's and a store's queues, an archive's ranges, the rows of Parquet's footers."""
    with threaded_cluster(store_path=str(tmp_path / "store")) as cluster:
        server = cluster.name_server_address
        with Admin(name_server=server) as admin, Producer("p", name_server=server) as producer:
            admin.create_topic("Orders", queue_count=2)
            for number in range(7):
                queue = MessageQueue("Orders", "broker-a", number % 2)
                producer.send(Message("Orders", b"%d" % number), queue=queue)
        live = check_input(Address("topic", "Orders"), server)
        assert live == Extent(7, {"Orders broker-a:0": (0, 4), "Orders broker-a:1": (0, 3)})
        late = check_input(Address("topic", "Orders"), server, since_ms=LATER_MS)
        assert late == Extent(0, {"Orders broker-a:0": (4, 4), "Orders broker-a:1": (3, 3)})
        none = check_input(Address("topic", "Orders"), server, until_ms=1)
        assert none == Extent(0, {"Orders broker-a:0": (0, 0), "Orders broker-a:1": (0, 0)})
        with pytest.raises(NoRoute, match=r"topic 'Order' is not at .*did you mean 'Orders'"):
            check_input(Address("topic", "Order"), server)
    store = Address("store", str(tmp_path / "store"), "Orders")
    assert check_input(store, "") == Extent(7, {"Orders :0": (0, 4), "Orders :1": (0, 3)})
    assert check_input(store, "", since_ms=1) == Extent()
    with pytest.raises(StoreError, match=r"holds no topic 'Oders'.*Orders"):
        check_input(Address("store", str(tmp_path / "store"), "Oders"), "")
    with pytest.raises(ConfigError, match="holds no archive"):
        check_input(Address("archive", str(tmp_path)), "")
    table = tmp_path / "table" / "day=1"
    table.mkdir(parents=True)
    parquet.write_table(pyarrow.table({"a": [1, 2, 3]}), table / "a.parquet")
    whole = Address("parquet", str(tmp_path / "table"))
    assert check_input(whole, "") == Extent(3)
    (table / "b.parquet").write_bytes(b"no Parquet")
    assert check_input(whole, "") == Extent()
    assert check_input(Address("jdbc", "jdbc:derby:x", "T"), "") == Extent()


def test_ranges_of_an_archive() -> None:
    """From the first to the last offset of each queue, over all files."""
    files = [
        ArchiveFile(
            f"{n}", "", "T", "2026-01-01", 5, 1, "", (FileRange("a", 0, *ends, 5, "", 0, 0),)
        )
        for n, ends in enumerate([(10, 15), (15, 20), (2, 7)])
    ]
    assert archive_ranges(files) == {"T a:0": (2, 20)}


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("1.5h", 5400), ("2 days", 172_800)]
)
def test_durations(text: str, seconds: float) -> None:
    """As people write them."""
    assert duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "10", "m", "10 parsecs", "-5s"])
def test_no_durations(text: str) -> None:
    """Anything else is refused with an example."""
    with pytest.raises(ConfigError, match="write 90s, 10m, 1h or 2d"):
        duration_s(text)


def test_on_time_cannot_exceed_late() -> None:
    """Records further apart than late do not meet, so none could be told as late."""
    with pytest.raises(ConfigError, match="cannot be later than late"):
        Reconciling("1m", on_time="10m")


def test_connection_options_reach_the_source(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and TLS by the source's names, those of the environment too; workers have another."""
    monkeypatch.setenv("COMETMQ_SECRET_KEY", "s")
    assert live_options("h:1", {"access_key": "a", "tls": True}) == {
        "nameServer": "h:1",
        "accessKey": "a",
        "secretKey": "s",
        "tls": "true",
    }
    monkeypatch.setenv("COMETMQ_TLS", "no-hostname")
    monkeypatch.setenv("COMETMQ_TLS_CA", "ca.pem")
    assert live_options("h:1", {"secret_key": "t"}) == {
        "nameServer": "h:1",
        "secretKey": "t",
        "tls": "no-hostname",
        "tlsCaFile": "ca.pem",
    }
    assert live_options("h:1", {"tls": Tls(verify=False)})["tls"] == "insecure"
    assert live_options("h:1", {"tls": False})["tls"] == "false"


def test_results_go_to_a_directory_of_their_own(tmp_path: Path) -> None:
    """A stream goes on beside its own batches and nobody else's."""
    check_out(None, stream=False)
    check_out(str(tmp_path / "new"), stream=False)
    (tmp_path / "batch=00000001").mkdir()
    check_out(str(tmp_path), stream=True)
    with pytest.raises(ConfigError, match="is not empty"):
        check_out(str(tmp_path), stream=False)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"thesis\.txt"):
        check_out(str(tmp_path), stream=True)


def test_a_table_directory_of_somebody_else_is_left_alone(tmp_path: Path) -> None:
    """Files that are not ours are not written beside; a pointer that is none is damage."""
    with pytest.raises(ConfigError, match="holds no table"):
        current_snapshot(tmp_path)
    (tmp_path / "thesis.txt").touch()
    with pytest.raises(ConfigError, match=r"is not empty \(thesis\.txt\)"):
        ParquetTable(tmp_path)
    (tmp_path / "_table.json").write_text("{")
    with pytest.raises(StoreCorrupt, match="is not a table's pointer"):
        ParquetTable(tmp_path)
    (tmp_path / "_table.json").write_text('{"format": 99}')
    with pytest.raises(ConfigError, match="has format 99"):
        ParquetTable(tmp_path)


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    """The second is told to wait; after the first it may."""
    first, second = ParquetTable(tmp_path), ParquetTable(tmp_path)
    with (
        first.locked(),
        pytest.raises(ConfigError, match="another run is writing"),
        second.locked(),
    ):
        pass
    with second.locked():
        assert second.columns() is None
