"""Two sources compared, at once and as they come, by function and by command."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.dataset
import pyarrow.parquet
import pytest
from tests.spark.clusters import Cluster
from tests.spark.commands import Ran, run_command

from cometmq.errors import ConfigError
from cometmq.spark.pipelines.reconcile.differences import Comparing, sides_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)
Row = dict[str, Any]


def two_sides() -> tuple[list[Row], list[Row]]:
    """100 payments, one a minute, told half a minute later by the ledger; six are not right."""
    left = [payment(number, 0) for number in range(100)]
    right = [payment(number, 30) for number in range(100)]
    del left[3]
    del right[50]
    right[60] = {**right[60], "amount": -1.0}
    left.append(left[10])
    right[70] = {**right[70], "at": right[70]["at"] + timedelta(minutes=5)}
    right.append({**right[20], "id": None})
    return left, right


EXPECTED = {
    "missing_left": 1,
    "missing_right": 1,
    "different": 1,
    "duplicate_left": 1,
    "duplicate_right": 0,
    "late": 1,
    "no_key": 1,
}


def payment(number: int, after_s: int) -> Row:
    """One record."""
    at = BEGIN + timedelta(minutes=number, seconds=after_s)
    return {"id": number, "at": at, "amount": float(number)}


def write(path: Path, rows: list[Row], *names: str) -> Path:
    """Parquet, in as many files as names."""
    path.mkdir(exist_ok=True)
    part = -(-len(rows) // len(names))
    for number, name in enumerate(names):
        chosen = rows[number * part : (number + 1) * part]
        pyarrow.parquet.write_table(pa.Table.from_pylist(chosen), path / f"{name}.parquet")
    return path


def compare(capsys: pytest.CaptureFixture[str], left: Any, right: Any, *more: Any) -> Ran:
    """The command with what all tests share."""
    common = ("--key", "id", "--time", "at", "--value", "amount", "--late", "10m")
    return run_command(
        capsys, "pipeline", "reconcile", left, right, *common, "--on-time", "1m", *more
    )


def test_every_kind_of_difference_between_a_topic_and_files(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """JSON messages of a live topic beside Parquet: each kind once, kept, shown, exit code 6."""
    left, right = two_sides()
    topic = cluster.create(2, "Payments")
    cluster.send_json(topic, [{**row, "at": row["at"].isoformat()} for row in left], queues=2)
    files = write(tmp_path / "right", right, "one")
    page, out = tmp_path / "page.html", tmp_path / "out"
    ran = compare(
        capsys,
        f"topic:{topic}",
        f"parquet:{files}",
        *("-n", cluster.name_server, "--left-json", "id bigint, at timestamp, amount double"),
        *("--json", "--report", page, "--out", out),
    )
    assert ran.code == 6, ran.err
    assert {name: ran.json[name] for name in EXPECTED} == EXPECTED
    assert (ran.json["left_records"], ran.json["right_records"]) == (100, 100)
    assert ran.json["equal_keys"] == 95
    assert ran.json["offsets"] == [f"{topic}: 100 of 100 in 2 queues"]
    kept = pyarrow.dataset.dataset(out, format="parquet").to_table().to_pylist()
    assert {(row["kind"], row["key"]) for row in kept} == {
        ("MISSING_LEFT", "3"),
        ("MISSING_RIGHT", "50"),
        ("DIFFERENT", "61"),
        ("DUPLICATE_LEFT", "11"),
        ("LATE", "71"),
        ("NO_KEY", None),
    }
    (late,) = (row for row in kept if row["kind"] == "LATE")
    assert late["delay_ms"] == 330_000
    (other,) = (row for row in kept if row["kind"] == "DIFFERENT")
    assert (other["left_values"], other["right_values"]) == (
        ['{"amount":61.0}'],
        ['{"amount":-1.0}'],
    )
    text = page.read_text()
    assert f" of {ran.json['compared_keys']:,} records differ: " in text
    assert "1 missing on the left" in text


@pytest.mark.full
def test_a_stream_of_two_topics_shows_the_offsets_of_both(
    spark: SparkSession, cluster: Cluster, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Each topic has its own line in the summary."""
    left, right = two_sides()
    topic, other = cluster.create(2, "Payments"), cluster.create(1, "Booked")
    cluster.send_json(topic, [{**row, "at": row["at"].isoformat()} for row in left], queues=2)
    cluster.send_json(other, [{**row, "at": row["at"].isoformat()} for row in right], queues=1)
    json_columns = "id bigint, at timestamp, amount double"
    streamed = compare(
        capsys,
        *(f"topic:{topic}", f"topic:{other}", "-n", cluster.name_server, "--json"),
        *("--left-json", json_columns, "--right-json", json_columns),
        *("--stream", "--once", "--checkpoint", tmp_path / "state"),
    )
    assert streamed.json["offsets"] == [
        f"{other}: 100 of 100 in 1 queue",
        f"{topic}: 100 of 100 in 2 queues",
    ], streamed.err


@pytest.mark.full
def test_equal_sides_end_with_0_also_a_database(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Parquet beside a table of a database through JDBC, inside a window of event time."""
    rows = [payment(number, 0) for number in range(20)]
    files = write(tmp_path / "left", rows, "one")
    # Derby comes with Spark, and would write its log where the tests were started.
    system: Any = spark._jvm.java.lang.System  # type: ignore[union-attr]
    system.setProperty("derby.stream.error.file", str(tmp_path / "derby.log"))
    url = f"jdbc:derby:{tmp_path / 'shop'};create=true"
    database = spark.createDataFrame(pa.Table.from_pylist(rows[:10]))
    database.write.jdbc(url, "PAYMENTS")
    ran = compare(
        capsys,
        files,
        f"{url}#PAYMENTS",
        "--json",
        "--until",
        (BEGIN + timedelta(minutes=10)).isoformat(),
    )
    assert ran.code == 0, ran.out + ran.err
    assert (ran.json["compared_keys"], ran.json["is_good"]) == (10, True)
    assert "offsets" not in ran.json
    missing = compare(capsys, files, f"{url}#NO_SUCH_TABLE")
    assert (missing.code, missing.err.count("\n")) == (2, 1)


@pytest.mark.full
def test_a_stream_finds_the_same_and_goes_on_where_it_was(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two runs over one checkpoint find together what one batch finds, each difference once."""
    left, right = two_sides()
    # Whoever is far behind holds the watermark: a last pair closes every group before it.
    end = [payment(500, 0), payment(600, 0)]
    sources = (tmp_path / "left", tmp_path / "right")
    timeless = {**payment(999, 0), "at": None}
    write(sources[0], [*left[:60], left[-1], timeless], "one")
    write(sources[1], [*right[:60], right[-1]], "one")
    out = tmp_path / "out"
    common = ("--stream", "--once", "--checkpoint", tmp_path / "state", "--out", out, "--json")
    first = compare(capsys, *sources, *common)
    assert first.code == 6, first.err
    assert first.json["open_groups"] > 0
    assert first.json["without_time"] == 1
    write(sources[0], [*left[60:-1], *end], "two")
    write(sources[1], [*right[60:-1], *end], "two")
    second = compare(capsys, *sources, *common)
    assert second.code == 6, second.err
    found = {name: first.json[name] + second.json[name] for name in EXPECTED}
    assert found == EXPECTED
    assert first.json["dropped_late"] + second.json["dropped_late"] == 0
    assert second.json["without_time"] == 0
    kept = pyarrow.dataset.dataset(out, format="parquet").to_table(["kind"])
    assert len(kept) == 6


def test_what_does_not_fit_is_told_before_anything_is_read(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Columns, types, expressions and options, each with the right one."""
    left = spark.createDataFrame([], "id bigint, at timestamp, amount double")
    right = spark.createDataFrame([], "id bigint, at timestamp, amount string")
    fits = Comparing("id", "at", ("id",))
    for wants, said in (
        (Comparing("idd", "at"), "no column idd; did you mean id?"),
        (Comparing("id", "amount"), "event time of the left side is double"),
        (Comparing("id", "at", ("id +",)), "the left side cannot be read"),
        (Comparing("id", "at", ("amount",)), r"Cast one of them: --right-value 'cast\(amount as d"),
    ):
        with pytest.raises(ConfigError, match=said):
            sides_of(left, right, wants, late="1m")
    with pytest.raises(ConfigError, match="1 values on the left, 0 on the right"):
        sides_of(left, right, fits, Comparing("id", "at"), late="1m")
    place = write(tmp_path / "left", [payment(1, 0)], "one")
    assert "no --" not in compare(capsys, place, tmp_path / "none").err
    assert "there is no such file" in compare(capsys, place, tmp_path / "none").err
    assert (
        "--stream and --checkpoint DIR go together" in compare(capsys, place, place, "--stream").err
    )
    assert "'soon' is no duration" in compare(capsys, place, place, "--window", "soon").err
    wrong = compare(capsys, place, place, "--left-key", "id(")
    assert "cannot be read as (id() as _key: [PARSE_SYNTAX_ERROR] Syntax error" in wrong.err
    unknown = compare(capsys, place, place, "--left-key", "zzz")
    assert "the left side has no column zzz. It has " in unknown.err
    ran = run_command(capsys, "pipeline", "reconcile", place, place, "--key", "id")
    assert (ran.code, "the left side has no time" in ran.err) == (2, True)
    stream = compare(
        capsys, f"jdbc:derby:{tmp_path}/x#T", place, "--stream", "--checkpoint", tmp_path / "c"
    )
    assert "cannot be read as a stream" in stream.err
