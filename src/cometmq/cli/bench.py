"""`cometmq bench`: runs the load programs of a clone; the wheel does not contain them."""

import sys
from importlib import import_module
from pathlib import Path

import click

import cometmq
from cometmq.errors import ConfigError

__all__ = ["bench", "load_command"]


def load_command() -> click.Command:
    """The command of the clone this package is imported from, or of `python -m bench`.

    Raises:
        ConfigError: this is an installed wheel.
    """
    clone = Path(cometmq.__file__).resolve().parents[2]
    if (clone / "bench" / "main.py").is_file() and (clone / "pyproject.toml").is_file():
        sys.path.insert(0, str(clone))
    elif "bench.main" not in sys.modules:
        raise ConfigError(
            "the wheel has no load programs, and none of Java's for --against java: clone "
            "CometMQ's repository and run `python -m bench` in it with this installation, or "
            "install the clone by `pip install -e .`; --against java also needs a JDK of 17 or "
            "newer and, once, Maven, which fetches RocketMQ's jars"
        )
    command: click.Command = import_module("bench.main").bench_command
    return command


bench = load_command()
