"""Spark's exceptions as one sentence, and PySpark's own error logs kept quiet."""

from __future__ import annotations

import contextlib
import logging
import re
from importlib import import_module
from typing import TYPE_CHECKING, Final

from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["explain_errors", "interruptible", "quiet_queries", "spark_sentence"]

_QUERY_LOGS: Final = ("SQLQueryContextLogger", "DataFrameQueryContextLogger")
_JAVA_NAME: Final = re.compile(r"^(?:[a-z][\w]*\.)+[A-Z][\w.$]*: ")


def spark_sentence(error: BaseException) -> str:
    """The one line of Spark's error text that says what is wrong."""
    text = str(error)
    # Our own error from a worker: its text follows the name of its class.
    ours = re.search(r"cometmq\.errors\.\w+: (.+)", text)
    if ours is not None:
        return ours[1].strip()
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    if not lines:
        return repr(error)
    if not lines[0].startswith("An error occurred while calling"):
        return lines[0]
    # py4j's text: the exception follows, and after its frames the cause.
    causes = [line for line in lines if line.startswith(("Caused by: ", ": "))]
    if not causes:
        return lines[0]
    return _JAVA_NAME.sub("", causes[-1].removeprefix("Caused by").removeprefix(": "))


@contextlib.contextmanager
def quiet_queries() -> Iterator[None]:
    """Keep PySpark from logging a refused query as a page of JSON on stderr before it raises."""
    from pyspark.logger import PySparkLogger

    # PySpark must create these: an ordinary logger of the same name refuses its arguments.
    logs: list[logging.Logger] = [PySparkLogger.getLogger(name) for name in _QUERY_LOGS]
    before = [log.disabled for log in logs]
    for log in logs:
        log.disabled = True
    try:
        yield
    finally:
        for log, was_disabled in zip(logs, before, strict=True):
            log.disabled = was_disabled


@contextlib.contextmanager
def interruptible() -> Iterator[None]:
    """Raise KeyboardInterrupt after Ctrl-C, instead of an error of the cleanup after it.

    The interrupt breaks off a call of the JVM, and the next call, during cleanup, reads the answer
    of the first.

    Raises:
        KeyboardInterrupt: it is in the error's chain.
    """
    try:
        yield
    except Exception as error:
        before: BaseException | None = error
        while before is not None:
            if isinstance(before, KeyboardInterrupt):
                raise KeyboardInterrupt from None
            before = before.__context__
        raise


@contextlib.contextmanager
def explain_errors() -> Iterator[None]:
    """Turn Spark's exceptions into a ConfigError of one line; our own errors pass unchanged.

    Raises:
        ConfigError: Spark raised an exception.
    """
    from pyspark.errors import PySparkException

    # py4j has no types; it raises this for an exception of the JVM that PySpark does not know.
    jvm_error: type[Exception] = import_module("py4j.protocol").Py4JError
    try:
        with interruptible(), quiet_queries():
            yield
    except (PySparkException, jvm_error) as error:
        sentence = spark_sentence(error)
        is_ours = "cometmq.errors." in str(error)
        raise ConfigError(sentence if is_ours else f"Spark failed: {sentence}") from None
