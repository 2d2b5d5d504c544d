"""Configuration: RocketMQ's keys, clear refusals, and changes at run time."""

from pathlib import Path

import pytest

from cometmq.codec.java_properties import format_properties, parse_properties
from cometmq.errors import ConfigError
from cometmq.namesrv.config import NameServerConfig, load_name_server_config, updated_config


def test_an_unmodified_java_file_loads(tmp_path: Path) -> None:
    """Effective keys take effect, keys without effect here are listed."""
    path = tmp_path / "namesrv.conf"
    path.write_text(
        "# name server\nlistenPort = 9877\norderMessageEnable=true\n"
        "clientRequestThreadPoolNums=8\nrocketmqHome=C:\\\\rocketmq\n"
        "connectTimeoutMillis=3000\ncontrollerStorePath=/data/controller\n"
    )
    loaded = load_name_server_config(str(path), overrides={"listenPort": 0})
    assert loaded.config.listen_port == 0
    assert loaded.config.order_message_enable
    assert loaded.ignored == {
        "clientRequestThreadPoolNums": "8",
        "rocketmqHome": "C:\\rocketmq",
        "connectTimeoutMillis": "3000",
        "controllerStorePath": "/data/controller",
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("listenPort=66000", r"listenPort=66000 \(.*\) is not accepted: .* from 0 to 65535"),
        ("listenPort=x", "listenPort=x .* a whole number"),
        ("orderMessageEnable=maybe", r"expected true \| false"),
        ("orderMesageEnable=true", "unknown configuration key orderMesageEnable; did you mean ord"),
        ("enableControllerInNamesrv=x", "enableControllerInNamesrv=x .* true | false"),
        ("tls.test.mode.enable=true", "cannot be served: .* or start with --insecure"),
        ("zzz=1", r"unknown configuration key zzz \(from"),
    ],
)
def test_a_bad_value_names_key_value_and_range(tmp_path: Path, text: str, message: str) -> None:
    """So that nobody has to guess."""
    path = tmp_path / "namesrv.conf"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message):
        load_name_server_config(str(path))


def test_protection_that_does_not_exist_is_waived_by_hand_only(tmp_path: Path) -> None:
    """``--insecure`` starts without what was asked for, and no setting of TLS changes later."""
    path = tmp_path / "namesrv.conf"
    for mode in ("permissive", "disabled"):
        path.write_text(f"tls.server.mode={mode}\nuseTLS=false\n")
        loaded = load_name_server_config(str(path))
        assert (loaded.ignored, loaded.unprotected) == ({}, {})
    path.write_text("tls.test.mode.enable=true\n")
    loaded = load_name_server_config(str(path), is_insecure=True)
    assert loaded.unprotected == {"tls.test.mode.enable": "true"}
    with pytest.raises(ConfigError, match="cannot change while the name server runs"):
        updated_config(loaded.config, {"tls.server.mode": "disabled"})


def test_an_unreadable_file_is_named(tmp_path: Path) -> None:
    """A missing one, and one that is not text."""
    with pytest.raises(ConfigError, match="cannot read configuration file"):
        load_name_server_config(str(tmp_path / "missing"))
    path = tmp_path / "binary.conf"
    path.write_bytes(b"listenPort=1\n\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 13"):
        load_name_server_config(str(path))


def test_changes_at_run_time_are_all_or_nothing() -> None:
    """Ports need a restart; ignored keys are accepted."""
    config = NameServerConfig()
    changed = updated_config(config, {"orderMessageEnable": "true", "clusterTest": "false"})
    assert changed.order_message_enable
    assert not config.order_message_enable
    with pytest.raises(ConfigError, match="restart"):
        updated_config(config, {"listenPort": "1"})
    with pytest.raises(ConfigError, match="unknown"):
        updated_config(config, {"orderMessageEnable": "true", "nonsense": "1"})


def test_changes_go_to_the_file_of_the_start(tmp_path: Path) -> None:
    """As with RocketMQ's -c; TOML has no lines of properties, and a given path wins."""
    path = tmp_path / "namesrv.conf"
    path.write_text("listenPort=5\n")
    assert load_name_server_config(str(path)).config.config_store_path == str(path)
    given = load_name_server_config(str(path), overrides={"configStorePath": "/x"})
    assert given.config.config_store_path == "/x"
    toml = tmp_path / "namesrv.toml"
    toml.write_text("listenPort = 5\n")
    default = NameServerConfig().config_store_path
    assert load_name_server_config(str(toml)).config.config_store_path == default


def test_toml_with_and_without_a_table(tmp_path: Path) -> None:
    """The same keys, typed; a broken file is named."""
    path = tmp_path / "namesrv.toml"
    path.write_text("listenPort = 5\n[names]\norderMessageEnable = true\n")
    config = load_name_server_config(str(path)).config
    assert (config.listen_port, config.order_message_enable) == (5, True)
    path.write_text("listenPort = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_name_server_config(str(path))


def test_the_properties_text_reads_back() -> None:
    """What 319 answers is what a file may hold."""
    config = NameServerConfig(order_message_enable=True, listen_port=1)
    text = config.properties_text()
    assert "orderMessageEnable=true\n" in text
    values = parse_properties(text)
    assert load_name_server_config(overrides=values).config == config
    assert format_properties(values) == text
    assert config.black_list() >= {"kvConfigPath", "configStorePath", "rocketmqHome"}
