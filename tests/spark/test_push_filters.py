"""Why our sources take restrictions as options: what PySpark does with pushed filters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def register(spark: SparkSession) -> None:
    """A source of queues 0 to 3 that reads only the queue a filter names."""
    from pyspark.sql.datasource import DataSource, DataSourceReader, EqualTo, InputPartition

    class Pruning(DataSourceReader):
        def __init__(self) -> None:
            self.queues = [0, 1, 2, 3]

        def pushFilters(self, filters):  # type: ignore[no-untyped-def]  # noqa: N802
            for item in filters:
                if isinstance(item, EqualTo) and item.attribute == ("queueId",):
                    self.queues = [item.value]
                else:
                    yield item

        def partitions(self):  # type: ignore[no-untyped-def]
            return [InputPartition(queue_id) for queue_id in self.queues]

        def read(self, partition):  # type: ignore[no-untyped-def]
            yield (partition.value,)

    class Queues(DataSource):
        @classmethod
        def name(cls) -> str:
            return "pruned-queues"

        def schema(self) -> str:
            return "queueId int"

        def reader(self, schema):  # type: ignore[no-untyped-def]
            return Pruning()

    spark.dataSource.register(Queues)


@pytest.mark.full
def test_pushed_filter_still_leaks_into_other_uses(spark: SparkSession) -> None:
    """One DataFrame used twice: the first use's filter cuts the second one's rows.

    Fails where PySpark is fixed: then our readers can have `pushFilters`, and this test goes.
    """
    own = spark.newSession()
    own.conf.set("spark.sql.python.filterPushdown.enabled", "true")
    register(own)
    frame = own.read.format("pruned-queues").load()
    assert frame.filter("queueId = 2").count() == 1
    assert frame.count() == 1, "pushFilters is fixed in this PySpark: let the sources use it"
