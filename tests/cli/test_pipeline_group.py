"""`cometmq pipeline`: a group that imports its commands when they run."""

import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from cometmq.cli.main import root
from cometmq.cli.pipeline.group import PIPELINES, pipeline

HEAVY = ("pyspark", "pyarrow", "numpy", "rich", "cometmq.spark", "cometmq.client", "asyncio")


@pytest.mark.parametrize("name", PIPELINES)
def test_table_tells_what_the_pipeline_tells(name: str) -> None:
    """The help table is a copy, kept so that --help imports no pipeline; copies must not drift."""
    with click.Context(root) as context:
        command = pipeline.get_command(context, name)
        assert command is not None
        assert command.name == name
        assert command.short_help == PIPELINES[name][2]


@pytest.mark.parametrize("name", PIPELINES)
def test_every_pipeline_explains_itself(name: str) -> None:
    """--help of each works without Spark, Java or a cluster."""
    result = CliRunner().invoke(root, ["pipeline", name, "--help"])
    assert result.exit_code == 0, result.output
    assert "Usage:" in result.output


def test_help_imports_nothing_heavy() -> None:
    """`cometmq pipeline --help` and every pipeline's own help start in the time click takes."""
    script = (
        "import sys\n"
        "from click.testing import CliRunner\n"
        "theirs = set(sys.modules)\n"  # its debugger brings asyncio with it on Python 3.14
        "from cometmq.cli.main import root\n"
        "from cometmq.cli.pipeline.group import PIPELINES\n"
        "for words in [[], *([name] for name in PIPELINES)]:\n"
        "    result = CliRunner().invoke(root, ['pipeline', *words, '--help'])\n"
        "    assert result.exit_code == 0, result.output\n"
        f"print(sorted((set(sys.modules) - theirs) & set({HEAVY!r})))\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=False
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "[]"


def test_unknown_pipeline_is_answered_with_the_nearest() -> None:
    """A typo costs one look."""
    result = CliRunner().invoke(root, ["pipeline", "no-such"])
    assert result.exit_code == 2
    assert "No such command 'no-such'" in result.output
