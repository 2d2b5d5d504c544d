"""Keys and TLS as options: the arguments that a command passes to its clients."""

from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from cometmq.cli.terminal.options import name_server_option, security_options
from cometmq.net.tls import Tls


def handed_on(*arguments: str) -> dict[str, Any]:
    """The keyword arguments a command with these options gives its clients."""
    found: dict[str, Any] = {}

    @click.command()
    @name_server_option
    def command(name_server: str) -> None:
        found.update(security_options())
        found["name_server"] = name_server

    result = CliRunner().invoke(command, list(arguments))
    assert result.exit_code == 0, result.output
    assert found.pop("name_server") == "127.0.0.1:9876"
    return found


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([], {}),
        (["--access-key", "ops"], {"access_key": "ops"}),
        (["--tls", "on"], {"tls": Tls()}),
        (["--tls", "off"], {"tls": False}),
        (["--tls", "no-hostname"], {"tls": Tls(check_hostname=False)}),
        (["--tls", "insecure"], {"tls": Tls(verify=False, check_hostname=False)}),
    ],
)
def test_options_become_arguments(arguments: list[str], expected: dict[str, Any]) -> None:
    """Nothing given leaves everything to the environment."""
    assert handed_on(*arguments) == expected


def test_files_turn_tls_on(tmp_path: Path) -> None:
    """A CA or a certificate without `--tls` means verified TLS; a missing file is named."""
    paths = {name: str(tmp_path / name) for name in ("ca", "cert", "key")}
    for path in paths.values():
        Path(path).touch()
    found = handed_on(
        *("--tls-ca", paths["ca"], "--tls-cert", paths["cert"], "--tls-key", paths["key"])
    )
    assert found == {
        "tls": Tls(ca_file=paths["ca"], cert_file=paths["cert"], key_file=paths["key"])
    }


def test_there_is_no_option_for_the_secret() -> None:
    """Command lines are seen by others."""
    from cometmq.cli.admin.topic import topic

    shown = CliRunner().invoke(topic, ["list", "--help"]).output
    assert "COMETMQ_SECRET_KEY" in shown
    assert "--secret" not in shown
