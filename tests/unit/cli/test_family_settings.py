"""What differs from one broker of a family to the next."""

import pytest

from cometmq.broker.base.config import load_config
from cometmq.cli.serve.processes import child_settings, plans
from cometmq.errors import ConfigError


def config(**keys: object) -> object:
    """A configuration with some keys."""
    return load_config(overrides=keys, environment={}).config


def test_ports_stores_and_names_are_apart() -> None:
    """Port + 10 i, DIR/NAME-i, NAME-i; other paths and ports that are set move along."""
    base = config(
        brokerName="b", listenPort=20000, storePathRootDir="/s", storePathCommitLog="/log"
    )
    assert child_settings(base, 2, None) == {  # type: ignore[arg-type]
        "brokerName": "b-2",
        "listenPort": "20020",
        "storePathRootDir": "/s/b-2",
        "storePathCommitLog": "/log/b-2",
    }


def test_a_port_the_system_chose_is_kept_over_restarts() -> None:
    """Port 0 stays 0 the first time, and is the old one afterwards."""
    base = config(brokerName="b", listenPort=0, storePathRootDir="/s")
    assert child_settings(base, 1, None)["listenPort"] == "0"  # type: ignore[arg-type]
    assert child_settings(base, 1, "127.0.0.1:4711")["listenPort"] == "4711"  # type: ignore[arg-type]


def test_a_port_that_does_not_exist_is_refused() -> None:
    """With the sum that led to it."""
    with pytest.raises(ConfigError, match="65540"):
        child_settings(config(listenPort=65530), 1, None)  # type: ignore[arg-type]


def test_a_child_is_started_as_its_family_was() -> None:
    """Options go through; what differs stands last and therefore wins."""
    base = config(brokerName="b", listenPort=20000, storePathRootDir="/s")
    family = plans(base, 2, ["-v"], ["-c", "f.conf", "--set", "brokerName=b"])  # type: ignore[arg-type]
    assert [plan.name for plan in family] == ["b-0", "b-1"]
    line = list(family[1].command(None))
    assert line[2:6] == ["cometmq", "-v", "broker", "--supervised"]
    assert line[6:10] == ["-c", "f.conf", "--set", "brokerName=b"]
    assert line[10:] == [
        *("--set", "brokerName=b-1", "--set", "listenPort=20010"),
        *("--set", "storePathRootDir=/s/b-1"),
    ]
