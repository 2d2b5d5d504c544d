"""Each setting has a sentence in docs/settings.toml, and each sentence its setting."""

import tomllib
from pathlib import Path

import pytest

from cometmq.broker.base.config import BrokerConfig, effective_keys, load_config
from cometmq.controller.config import ControllerConfig
from cometmq.namesrv.config import NameServerConfig
from cometmq.net.tls_server import TlsSettings
from cometmq.server.access.settings import AccessSettings

ROOT = Path(__file__).resolve().parents[2]
UNITS = {
    "",
    "bytes",
    "bytes/s",
    "checks",
    "commits",
    "connections",
    "entries",
    "files",
    "groups",
    "hours",
    "hours of the day",
    "messages",
    "minutes",
    "moves",
    "ms",
    "ms since 1970",
    "percent",
    "queues",
    "replicas",
    "requests",
    "requests/s",
    "s",
    "series",
    "slots",
}


def texts() -> dict[str, dict[str, list[str]]]:
    """The file's tables."""
    with (ROOT / "docs" / "settings.toml").open("rb") as file:
        return tomllib.load(file)


@pytest.mark.parametrize(
    ("server", "config"),
    [("broker", BrokerConfig), ("name-server", NameServerConfig), ("controller", ControllerConfig)],
)
def test_each_setting_is_explained(server: str, config: type[TlsSettings]) -> None:
    """A new setting needs a line in docs/settings.toml, and `make docs` after it."""
    tls, shared = (
        set(TlsSettings.__struct_encode_fields__),
        set(AccessSettings.__struct_encode_fields__),
    )
    assert set(texts()[server]) == set(config.__struct_encode_fields__) - shared
    assert set(texts()["tls"]) == tls
    assert set(texts()["every-server"]) == shared - tls


def test_explanations_are_sentences_with_known_units() -> None:
    """A unit from the list, and one sentence that does not repeat the key."""
    for table in texts().values():
        for key, (unit, text) in table.items():
            assert unit in UNITS, f"{key}: {unit}"
            assert (text.endswith(".") and text[0].isupper()) or text[0].isdigit(), key
            assert "|" not in text, key


def test_numbers_with_a_time_or_a_size_have_a_unit() -> None:
    """Whoever writes 5 should know of what."""
    table = texts()["broker"]
    for key, (default, _) in effective_keys().items():
        if default.isdigit() and int(default) >= 1000 and "Port" not in key and key in table:
            assert table[key][0] or key == "brokerElectionPriority", key


def test_the_example_file_starts_a_broker(tmp_path: Path) -> None:
    """As it is, and with every line that has a value switched on, it means the defaults."""
    text = (ROOT / "docs" / "reference" / "broker-example.conf").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("#") and "=" in line]
    keys = {line[1:].partition("=")[0] for line in lines if not line.startswith("# ")}
    assert keys == set(effective_keys())
    plain, whole = tmp_path / "plain.conf", tmp_path / "whole.conf"
    plain.write_text(text, encoding="utf-8")
    settings = [line[1:] for line in lines if not line.startswith("# ")]
    whole.write_text("\n".join(line for line in settings if not line.endswith("=")) + "\n")
    plain_config = load_config(str(plain), environment={}).config
    assert plain_config == load_config(environment={}).config
    whole_config = load_config(str(whole), overrides={"brokerName": "b"}, environment={}).config
    assert whole_config == load_config(overrides={"brokerName": "b"}, environment={}).config
