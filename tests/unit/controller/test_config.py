"""A controller's settings: RocketMQ's keys, clear refusals, and a name server that runs one."""

from pathlib import Path

import pytest

from cometmq.controller.config import load_controller_config, updated_config
from cometmq.errors import ConfigError
from cometmq.namesrv.config import load_name_server_config


def test_a_controllers_file_of_rocketmq_loads(tmp_path: Path) -> None:
    """The port is that of the own entry; keys without effect are listed."""
    path = tmp_path / "controller.conf"
    path.write_text(
        "controllerDLegerGroup = group1\ncontrollerDLegerPeers = n0-127.0.0.1:9878\n"
        "controllerDLegerSelfId = n0\ncontrollerStorePath = /data\nenableElectUncleanMaster=true\n"
    )
    loaded = load_controller_config(str(path))
    assert loaded.config.port() == 9878
    assert loaded.config.own_peer() == "127.0.0.1:9878"
    assert loaded.config.controller_store_path == "/data"
    assert loaded.config.enable_elect_unclean_master
    assert loaded.ignored == {"controllerDLegerGroup": "group1"}
    assert load_controller_config().config.port() == 9877
    assert load_controller_config(overrides={"controllerPort": "0"}).config.port() == 0


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"controllerDLegerPeers": "n0-h:1;n1-h:2"}, "several controllers.* set cometmqEtcd"),
        ({"controllerDLegerPeers": "h"}, "not of the form id-host:port"),
        ({"cometmqEtcd": "h:2379"}, "h:2379 does not begin with http"),
        ({"controllerPort": "x"}, "controllerPort=x .* is not accepted"),
        ({"controlerPort": "1"}, "did you mean controllerPort"),
        ({"tls.server.mode": "enforcing"}, "needs a certificate"),
    ],
)
def test_a_bad_setting_names_its_key(settings: dict[str, str], message: str) -> None:
    """And the way out."""
    with pytest.raises(ConfigError, match=message):
        load_controller_config(overrides=settings)


def test_several_controllers_share_etcd() -> None:
    """The entries of all of them may stand in each one's file."""
    config = load_controller_config(
        overrides={
            "controllerDLegerPeers": "n0-h:1;n1-h:2",
            "controllerDLegerSelfId": "n1",
            "cometmqEtcd": "http://a:2379; https://b:2379",
        }
    ).config
    assert config.etcd_endpoints() == ["http://a:2379", "https://b:2379"]
    assert (config.own_peer(), config.port()) == ("h:2", 2)


def test_some_settings_change_while_it_runs() -> None:
    """The others say that a restart is needed."""
    config = load_controller_config().config
    assert updated_config(config, {"scanNotActiveBrokerInterval": "9"}) != config
    with pytest.raises(ConfigError, match="restart it instead"):
        updated_config(config, {"cometmqEtcd": "http://h:1"})


def test_a_name_server_has_a_controller_inside() -> None:
    """Its settings go there; without the switch ours are refused, RocketMQ's have no effect."""
    settings = {
        "listenPort": "9876",
        "bindAddress": "127.0.0.1",
        "controllerDLegerPeers": "n0-h:1",
        "scanNotActiveBrokerInterval": "7",
    }
    loaded = load_name_server_config(
        overrides={**settings, "enableControllerInNamesrv": "true", "cometmqEtcd": "http://h:1"}
    )
    assert loaded.controller == {
        "bindAddress": "127.0.0.1",
        "controllerDLegerPeers": "n0-h:1",
        "cometmqEtcd": "http://h:1",
    }
    assert loaded.ignored == {}
    assert loaded.config.scan_not_active_broker_interval == 7
    alone = load_name_server_config(overrides=settings)
    assert (alone.controller, alone.ignored) == ({}, {"controllerDLegerPeers": "n0-h:1"})
    with pytest.raises(ConfigError, match="set enableControllerInNamesrv=true"):
        load_name_server_config(overrides={"cometmqEtcd": "http://h:1"})
