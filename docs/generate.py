"""Write the reference pages that repeat what the code says: commands and configuration keys.

`make docs` runs this; tests/docs/test_reference.py refuses pages that differ from the code.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Final

import click

from cometmq.broker.config import effective_keys, ignored_keys
from cometmq.cli import exit_codes
from cometmq.cli.main import root
from cometmq.namesrv.config import IGNORED_KEYS, NameServerConfig

HERE = Path(__file__).resolve().parent
NOTICE: Final = "<!-- Written by docs/generate.py (`make docs`); edits here are lost. -->\n"


def commands_page() -> str:
    """Every command's own --help, in the order of `cometmq --help`."""
    parts = [
        "# Commands and exit codes\n",
        NOTICE,
        "Every command that talks to a cluster finds it with `-n HOST:PORT` or `NAMESRV_ADDR`.\n"
        "Listings print a table on a terminal, one plain row per line in a pipe, and JSON with "
        "`--json`.\nA command's errors are one line on stderr.\n",
        "## Exit codes\n",
        _exit_code_table(),
    ]
    # The root's own settings: a command remembers the names of its help option from first use.
    with click.Context(root, info_name="cometmq", **root.context_settings) as context:
        assert isinstance(root, click.Group)
        for name in root.list_commands(context):
            command = root.get_command(context, name)
            assert command is not None
            parts += _command_parts(command, context, f"cometmq {name}")
    return "\n".join(parts)


def _exit_code_table() -> str:
    doc = exit_codes.__doc__ or ""
    rows = [line for line in doc.splitlines() if line.startswith("|")]
    return "\n".join(rows) + "\n"


def _command_parts(command: click.Command, parent: click.Context, title: str) -> list[str]:
    with click.Context(
        command, info_name=command.name, parent=parent, max_content_width=100, terminal_width=100
    ) as context:
        parts = [f"## {title}\n", "```text\n" + command.get_help(context).rstrip() + "\n```\n"]
        if isinstance(command, click.Group):
            for name in command.list_commands(context):
                child = command.get_command(context, name)
                assert child is not None
                parts += _command_parts(child, context, f"{title} {name}")
    return parts


def configuration_page() -> str:
    """Effective keys with default and range; the accepted keys without effect."""
    lines = [
        "# Configuration",
        "",
        NOTICE,
        "Keys have RocketMQ's names, in a Java properties file (`broker.conf`) or TOML.",
        "Later sources win: default, file (`-c`), environment, options, `--set`.",
        "In the environment a broker key is `COMETMQ_BROKER_` and the key in upper case, with or",
        "without underscores: `COMETMQ_BROKER_LISTEN_PORT`. `NAMESRV_ADDR` is `namesrvAddr`.",
        "A key that is in none of these lists is refused with the nearest known name.",
        "",
        "## Broker",
        "",
        "| Key | Default | Accepted |",
        "|---|---|---|",
    ]
    for key, (default, accepted) in sorted(effective_keys().items(), key=lambda item: item[0]):
        lines.append(f"| `{key}` | {_code(default)} | {_accepted(accepted)} |")
    lines += ["", "## Name server", "", "| Key | Default |", "|---|---|"]
    names = zip(
        NameServerConfig.__struct_encode_fields__,
        NameServerConfig.__struct_defaults__,
        strict=True,
    )
    for key, default in sorted(names, key=lambda item: item[0]):
        text = str(default).lower() if isinstance(default, bool) else str(default)
        lines.append(f"| `{key}` | {_code(text)} |")
    lines += [
        "",
        "## Known to RocketMQ, accepted, without effect here",
        "",
        "Listed once at start when a file sets them.",
        "",
        f"Broker ({len(ignored_keys())}): " + ", ".join(f"`{key}`" for key in ignored_keys()) + ".",
        "",
        f"Name server ({len(IGNORED_KEYS)}): "
        + ", ".join(f"`{key}`" for key in sorted(IGNORED_KEYS))
        + ".",
        "",
    ]
    return "\n".join(lines)


def _accepted(text: str) -> str:
    """Choices read as a sentence; the bars of a pattern stay, escaped for the table."""
    return text.replace(" | ", " or ").replace("|", "\\|")


def _code(text: str) -> str:
    return f"`{text}`" if text else ""


PAGES: Final[dict[str, Callable[[], str]]] = {
    "reference/commands.md": commands_page,
    "reference/configuration.md": configuration_page,
}


def main() -> None:
    """Write the pages in place."""
    for name, page in PAGES.items():
        (HERE / name).write_text(page(), encoding="utf-8")


if __name__ == "__main__":
    main()
