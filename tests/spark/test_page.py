"""The how-to on Spark: its commands work and print what the page shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from tests.interop.waiting import wait_until
from tests.spark.clusters import Cluster

from cometmq.arrow import scan
from cometmq.errors import StoreError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "use-spark.md"


def rows_on_disk(store: str) -> int:
    """Rows of Orders in the queues' files, which a running broker writes a moment late."""
    try:
        return int(scan(store, topic="Orders", columns=["queueId"]).read_all().num_rows)
    except StoreError:
        return 0


@pytest.mark.full
def test_page_works_from_top_to_bottom(
    spark: SparkSession,
    cluster: Cluster,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Every block in order, in one program, as a reader would."""
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```py\n(.*?)^```$", PAGE.read_text("utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) >= 6
    names: dict[str, object] = {}
    for block in blocks:
        if "cometmq-store" in block:
            wait_until(lambda: rows_on_disk(cluster.store_path) >= 1000)
        text = block.replace("127.0.0.1:9876", cluster.name_server)
        text = text.replace("/var/lib/cometmq/store", cluster.store_path)
        text = text.replace("checkpoint-orders", str(tmp_path / "checkpoint"))
        exec(compile(text, str(PAGE), "exec"), names)
        printed = capsys.readouterr().out
        for line in re.findall(r"# prints: (.*)", block):
            assert line in printed, f"{line!r} is not in {printed!r}"
    assert names["spark"] is not None
    assert spark.sparkContext is not None
