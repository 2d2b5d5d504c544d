"""How log lines look, and from which level on: COMETMQ_LOG_FORMAT and COMETMQ_LOG_LEVEL."""

import json
import logging
import os
from datetime import UTC, datetime
from typing import Any, Final

from cometmq.errors import ConfigError

__all__ = ["JsonLines", "child_line", "level_of_environment", "log_formatter"]

FORMAT_VARIABLE: Final = "COMETMQ_LOG_FORMAT"
LEVEL_VARIABLE: Final = "COMETMQ_LOG_LEVEL"
_LEVELS: Final = ("DEBUG", "INFO", "WARNING", "ERROR")
_TEXT: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"


class JsonLines(logging.Formatter):
    """One JSON object for each record: time (UTC), level, logger, message, and the exception."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.fromtimestamp(record.created, UTC)
        entry: dict[str, Any] = {
            "time": moment.isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


def log_formatter() -> logging.Formatter:
    """The formatter that the environment asks for: text, or JSON.

    Raises:
        ConfigError: the variable has another value.
    """
    wanted = os.environ.get(FORMAT_VARIABLE, "")
    if wanted.lower() in ("", "text"):
        return logging.Formatter(_TEXT)
    if wanted.lower() == "json":
        return JsonLines()
    raise ConfigError(f"{FORMAT_VARIABLE} is {wanted!r:.40}; set text or json")


def level_of_environment() -> int | None:
    """The level that the environment asks for, if it does.

    Raises:
        ConfigError: the variable names no level.
    """
    wanted = os.environ.get(LEVEL_VARIABLE, "")
    if not wanted:
        return None
    if wanted.upper() not in _LEVELS:
        raise ConfigError(f"{LEVEL_VARIABLE} is {wanted!r:.40}; set one of {', '.join(_LEVELS)}")
    return logging.getLevelNamesMapping()[wanted.upper()]


def child_line(line: str) -> str:
    """A line of a supervised broker, `NAME: TEXT`, as the environment wants lines.

    In JSON the object has the broker's name as `server`; a line that is no object becomes one.
    """
    if not isinstance(log_formatter(), JsonLines):
        return line
    name, _, text = line.partition(": ")
    try:
        entry = json.loads(text) if text.startswith("{") else None
    except ValueError:
        entry = None
    if not isinstance(entry, dict):
        time = datetime.now(UTC).isoformat(timespec="milliseconds")
        entry = {"time": time, "level": "INFO", "logger": "cometmq.cli", "message": text}
    return json.dumps(entry | {"server": name}, ensure_ascii=False)
