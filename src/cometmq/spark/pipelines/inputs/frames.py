"""The records at an address as a DataFrame, batch or streaming."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from cometmq.errors import ConfigError
from cometmq.spark.live.security import security_options_of
from cometmq.spark.pipelines.base.spark_errors import quiet_queries, spark_sentence
from cometmq.spark.pipelines.inputs.address import check_exists

if TYPE_CHECKING:
    from collections.abc import Mapping

    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

    from cometmq.client.base.security import SecurityOptions
    from cometmq.spark.pipelines.inputs.address import Address

__all__ = [
    "between",
    "live_options",
    "open_input",
    "parse_columns",
    "with_json_columns",
]

_STREAMED: Final = ("topic", "parquet", "json")


def open_input(
    spark: SparkSession,
    address: Address,
    *,
    options: Mapping[str, str] | None = None,
    stream: bool = False,
) -> DataFrame:
    """The records at ``address``.

    Args:
        options: for ``topic:`` those of the live source (``nameServer``, ``startingTimestamp``,
            …), for ``jdbc:`` those of Spark's JDBC source (``user``, ``driver``, …), for
            ``store:`` the ``mode`` (DROPMALFORMED skips records that do not decode); ignored
            otherwise.
        stream: return a streaming DataFrame; a topic begins at its first message unless
            ``options`` say otherwise.

    Raises:
        ConfigError: the input does not exist, cannot be streamed, or a package is missing.
    """
    chosen = dict(options or {})
    if stream and address.kind not in _STREAMED:
        raise ConfigError(
            f"{address} cannot be read as a stream: use topic:, parquet: or json:, or leave "
            "--stream out"
        )
    if address.kind == "topic":
        return _topic(spark, address.location, chosen, stream=stream)
    if address.kind == "jdbc":
        return _jdbc(spark, address, chosen)
    check_exists(address)
    if address.kind == "archive":
        from cometmq.spark.pipelines.archive.read import read_archive

        frame: DataFrame = read_archive(spark, address.location)
        return frame
    if address.kind == "store":
        reader = spark.read.format("cometmq-store").option("topic", address.part)
        # By default a pipeline draws no conclusions from a damaged store.
        reader = reader.option("mode", chosen.get("mode", "FAILFAST"))
        return reader.option("includeProperties", "true").load(address.location)
    if address.kind == "delta":
        return _delta(spark, address.location)
    return _files(spark, address, stream=stream)


def live_options(name_server: str, security: SecurityOptions | None = None) -> dict[str, str]:
    """Options of the live source for a command's connection options.

    They include keys and TLS settings of this process's environment; a worker may have another.
    """
    return {"nameServer": name_server, **security_options_of(security or {})}


def between(frame: DataFrame, since_ms: int | None, until_ms: int | None) -> DataFrame:
    """Messages stored in [since, until), ms since 1970.

    For a topic the options ``startingTimestamp`` and ``endingTimestamp`` do the same at the source.

    Raises:
        ConfigError: the DataFrame has no column storeTimestamp.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if since_ms is None and until_ms is None:
        return frame
    if "storeTimestamp" not in frame.columns:
        raise ConfigError(
            "a time was given, but there is no column storeTimestamp: there are "
            + ", ".join(frame.columns)
        )
    for moment_ms, is_start in ((since_ms, True), (until_ms, False)):
        if moment_ms is not None:
            edge = F.timestamp_millis(F.lit(moment_ms))
            column = F.col("storeTimestamp")
            frame = frame.where(column >= edge if is_start else column < edge)
    return frame


def _topic(spark: SparkSession, topic: str, options: dict[str, str], *, stream: bool) -> DataFrame:
    reader: Any = spark.readStream if stream else spark.read
    reader = reader.format("cometmq").option("subscribe", topic)
    if stream:
        options.setdefault("startingOffsets", "earliest")
    for name, value in options.items():
        reader = reader.option(name, value)
    frame: DataFrame = reader.load()
    return frame


def _jdbc(spark: SparkSession, address: Address, options: dict[str, str]) -> DataFrame:
    reader = (
        spark.read.format("jdbc").option("url", address.location).option("dbtable", address.part)
    )
    for name, value in options.items():
        reader = reader.option(name, value)
    try:
        return reader.load()
    except Exception as error:
        # A JDBC driver may throw anything; it becomes one sentence.
        raise ConfigError(
            f"{address} cannot be opened: {spark_sentence(error)} (a driver's jar comes with "
            "--conf spark.jars=DRIVER.jar)"
        ) from None


def _files(spark: SparkSession, address: Address, *, stream: bool) -> DataFrame:
    try:
        with quiet_queries():
            frame = spark.read.format(address.kind).load(address.location)
    except Exception as error:
        # An unreadable footer is not a PySpark exception; any exception becomes one sentence.
        raise ConfigError(
            f"{address} holds no {address.kind} data: {spark_sentence(error)}"
        ) from None
    if frame.columns == ["_corrupt_record"]:
        raise ConfigError(f"{address} holds no JSON data: no line of it is an object")
    if not stream:
        return frame
    reader = spark.readStream.format(address.kind).schema(frame.schema)
    return reader.load(address.location)


def _delta(spark: SparkSession, path: str) -> DataFrame:
    try:
        from deltalake import DeltaTable
        from deltalake.exceptions import TableNotFoundError
    except ImportError:
        raise ConfigError("Delta tables need deltalake: pip install 'cometmq[delta]'") from None
    try:
        table = DeltaTable(path)
    except TableNotFoundError:
        raise ConfigError(f"delta:{path}: there is no Delta table") from None
    return spark.createDataFrame(table.to_pyarrow_table())


def parse_columns(text: str) -> StructType:
    """``id bigint, name string`` as a schema; needs a running session.

    Raises:
        ConfigError: the text is no list of names and types.
    """
    from pyspark.errors import ParseException
    from pyspark.sql.types import StructType

    try:
        schema = StructType.fromDDL(text)
    except ParseException as error:
        raise ConfigError(
            f"{text!r} is no list of columns: write 'id bigint, name string'"
            f" ({spark_sentence(error)})"
        ) from None
    if not isinstance(schema, StructType):
        raise ConfigError(f"{text!r} is no list of columns: write 'id bigint, name string'")
    return schema


def with_json_columns(frame: DataFrame, columns: str) -> DataFrame:
    """The members of a JSON ``body`` as columns beside the others.

    Args:
        columns: names and Spark types, ``orderId bigint, amount double``.

    Raises:
        ConfigError: there is no body, or ``columns`` is no list of names and types.
    """
    from pyspark.sql import functions as F  # noqa: N812

    if "body" not in frame.columns:
        raise ConfigError(
            "a JSON body was asked for, but there is no column body: there are "
            + ", ".join(frame.columns)
        )
    schema = parse_columns(columns)
    replaced = {name.lower() for name in schema.names}
    others = [name for name in frame.columns if name.lower() not in replaced]
    parsed = F.from_json(F.col("body").cast("string"), schema)
    return frame.select(*others, parsed.alias("_json")).select(*others, "_json.*")
