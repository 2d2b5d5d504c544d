"""The form and the level of log lines come from the environment; -v and -q go before."""

import json
import logging
import sys

import click
import pytest

from cometmq.cli.terminal.log_lines import JsonLines, child_line
from cometmq.cli.terminal.options import set_up_logging
from cometmq.errors import ConfigError


def bare_logger(monkeypatch: pytest.MonkeyPatch) -> logging.Logger:
    """The root logger as if nobody had set it up; pytest adds its handlers when a test begins."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", logging.WARNING)
    return root


def context(**settings: object) -> click.Context:
    """The context of a command whose root got these options."""
    return click.Context(click.Command("x"), obj=settings)


def test_a_line_is_an_object(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Time in UTC, level, logger, text; an exception keeps its lines in one field."""
    bare_logger(monkeypatch)
    monkeypatch.setenv("COMETMQ_LOG_FORMAT", "json")
    monkeypatch.setenv("COMETMQ_LOG_LEVEL", "info")
    set_up_logging(context())
    try:
        raise ValueError("line\nend")
    except ValueError:
        logging.getLogger("cometmq.store").exception("log %s", "grüße")
    logging.getLogger("cometmq.store").info("told")
    logging.getLogger("cometmq.store").debug("not told")
    first, second = map(json.loads, capsys.readouterr().err.splitlines())
    assert (first["level"], first["logger"], first["message"]) == (
        "ERROR",
        "cometmq.store",
        "log grüße",
    )
    assert first["time"].endswith("+00:00")
    assert "ValueError: line\nend" in first["exception"]
    assert second["message"] == "told"


@pytest.mark.parametrize(
    ("variable", "settings", "level"),
    [
        ("", {}, logging.WARNING),
        ("ERROR", {}, logging.ERROR),
        ("debug", {}, logging.DEBUG),
        ("ERROR", {"verbose": 1}, logging.INFO),
        ("", {"verbose": 2}, logging.DEBUG),
    ],
)
def test_level(
    monkeypatch: pytest.MonkeyPatch, variable: str, settings: dict[str, object], level: int
) -> None:
    """The variable's, unless -v asks for more."""
    root_logger = bare_logger(monkeypatch)
    monkeypatch.setenv("COMETMQ_LOG_LEVEL", variable)
    set_up_logging(context(**settings))
    assert root_logger.level == level
    assert root_logger.handlers[0].stream is sys.stderr  # type: ignore[attr-defined]


@pytest.mark.parametrize("name", ["COMETMQ_LOG_LEVEL", "COMETMQ_LOG_FORMAT"])
def test_unknown_words_are_refused(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """The error names the variable and what it may be."""
    monkeypatch.setenv(name, "loud")
    with pytest.raises(ConfigError, match=f"{name} is 'loud'"):
        set_up_logging(context())


def test_lines_of_several_brokers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each object says which broker wrote it; what is no object becomes one."""
    assert child_line("orders-0: told") == "orders-0: told"
    monkeypatch.setenv("COMETMQ_LOG_FORMAT", "json")
    record = logging.LogRecord("a", logging.INFO, "", 0, "told: %s", ("x",), None)
    merged = json.loads(child_line(f"orders-0: {JsonLines().format(record)}"))
    assert (merged["server"], merged["message"]) == ("orders-0", "told: x")
    for text in ("Traceback", "{broken"):
        merged = json.loads(child_line(f"orders-1: {text}"))
        assert (merged["server"], merged["message"]) == ("orders-1", text)
