"""Broker configuration: sources, the table of keys, errors that name what to do."""

import contextlib
import re
from pathlib import Path

import pytest

from cometmq.broker.base.config import (
    DEMANDS,
    BrokerConfig,
    effective_keys,
    ignored_keys,
    load_config,
)
from cometmq.codec.java_properties import parse_properties
from cometmq.errors import ConfigError

DISTRIBUTED = """
# Licensed to the Apache Software Foundation
brokerClusterName = DefaultCluster
brokerName = broker-a
brokerId = 0
deleteWhen = 04
fileReservedTime = 48
brokerRole = ASYNC_MASTER
flushDiskType = ASYNC_FLUSH
"""

# What production files hold since the templates of 3.x: other separators, keys that no RocketMQ
# reads any more, old spellings, pools.
GROWN = r"""
brokerClusterName=rocketmq-cluster
brokerName=broker-a
brokerId=0
namesrvAddr=10.0.0.1:9876;10.0.0.2:9876
brokerIP1=10.0.0.3
brokerIP2 = 10.0.0.3
defaultTopicQueueNums=4
autoCreateTopicEnable=false
autoCreateSubscriptionGroup : true
listenPort 10911
haListenPort=10912
deleteWhen=04
fileReservedTime=120
mapedFileSizeCommitLog=1073741824
mapedFileSizeConsumeQueue=300000
destroyMapedFileIntervalForcibly=120000
redeleteHangedFileInterval=120000
diskMaxUsedSpaceRatio=88
storePathRootDir=/data/rocketmq/store
storePathCommitLog=/data/rocketmq/store/commitlog
storePathConsumeQueue=/data/rocketmq/store/consumequeue
storePathIndex=/data/rocketmq/store/index
storeCheckpoint=/data/rocketmq/store/checkpoint
abortFile=/data/rocketmq/store/abort
maxMessageSize=65536
flushCommitLogLeastPages=4
flushConsumeQueueLeastPages=2
flushCommitLogThoroughInterval=10000
flushConsumeQueueThoroughInterval=60000
brokerRole=ASYNC_MASTER
flushDiskType=SYNC_FLUSH
checkTransactionMessageEnable=false
sendMessageThreadPoolNums=128
pullMessageThreadPoolNums=128
useReentrantLockWhenPutMessage=true
waitTimeMillsInSendQueue=1000
transientStorePoolEnable=false
enablePropertyFilter=true
metricsExporterType=PROM
serverChannelMaxIdleTimeSeconds=120
maxTransferCountOnMessageInDisk=8
"""


def test_the_broker_conf_of_a_distribution_starts(tmp_path: Path) -> None:
    """An unmodified file of RocketMQ is accepted."""
    path = tmp_path / "broker.conf"
    path.write_text(DISTRIBUTED)
    loaded = load_config(str(path), environment={})
    assert loaded.config.broker_name == "broker-a"
    assert loaded.config.file_reserved_time == 48
    assert loaded.ignored == {}


def test_a_file_grown_over_years_starts(tmp_path: Path) -> None:
    """Effective keys take effect, every other one is listed and none refused."""
    path = tmp_path / "broker.conf"
    path.write_text(GROWN)
    loaded = load_config(str(path), environment={})
    config = loaded.config
    assert config.name_servers() == ("10.0.0.1:9876", "10.0.0.2:9876")
    assert config.listen_port == 10911
    assert (config.flush_disk_type, config.max_message_size) == ("SYNC_FLUSH", 65536)
    assert config.auto_create_subscription_group
    assert config.store_path() == "/data/rocketmq/store"
    given = set(parse_properties(GROWN))
    assert set(loaded.ignored) == given - set(effective_keys()) - set(DEMANDS)
    assert {"storePathConsumeQueue", "abortFile"} <= set(loaded.ignored)
    assert config.ha_listen_port


def test_every_effective_key_is_read_somewhere() -> None:
    """A key that is listed as effective but read by nobody would promise what it does not do."""
    rooms = Path(__file__).resolve().parents[4] / "src" / "cometmq"
    texts = [
        path.read_text(encoding="utf-8")
        for path in rooms.rglob("*.py")
        if path.parts[-3:] != ("broker", "base", "config.py")
    ]
    # Read by methods of BrokerConfig itself.
    own = {"namesrv_addr", "store_path_root_dir", "store_path_commit_log", "config_black_list"}
    own |= {"in_sync_replicas"}
    readers = re.compile(r"\b\w*config(?:uration)?(?:\(\))?\.(\w+)")
    read = {name for text in texts for name in readers.findall(text)}
    # What every server has is read from settings of its own.
    read |= {name for text in texts for name in re.findall(r"\b_?settings\.(\w+)", text)}
    own |= {"global_white_remote_addresses", "init_authentication_user"}
    own |= {"inner_client_authentication_credentials", "authentication_enabled"}
    read |= {name for text in texts for name in re.findall(r"\.(tls_\w+|use_tls)\b", text)}
    assert set(BrokerConfig.__struct_fields__) - own - read == set()


NO_CONTROLLER = "replica sets with a controller are not part of this version"


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("totalReplicas=3", f"{NO_CONTROLLER}; set 1$"),
        ("enableSlaveActingMaster=true", "slaves that act as masters are not part"),
        ("duplicationEnable=true", "a log that is written twice is not part"),
        ("enableControllerMode=true", "enableControllerMode=true needs controllerAddr=host:port"),
        ("storeType=defaultRocksDB", "RocksDB queues are not supported; set default$"),
    ],
)
def test_replication_that_does_not_exist_is_refused_whatever_is_waived(
    setting: str, message: str
) -> None:
    """A broker that answers SEND_OK with one copy may not be asked for more."""
    for is_insecure in (False, True):
        with pytest.raises(ConfigError, match=message):
            load_config(overrides=[setting], environment={}, is_insecure=is_insecure)


def test_values_that_ask_for_nothing_start() -> None:
    """As files of RocketMQ have them; nothing is listed for them."""
    text = """brokerRole=ASYNC_MASTER brokerId=0 inSyncReplicas=1 minInSyncReplicas=1
        totalReplicas=1 allAckInSyncStateSet=false enableControllerMode=FALSE
        enableDLegerCommitLog=false duplicationEnable=false storeType=default aclEnable=false
        authenticationEnabled=false authorizationEnabled=false tls.server.mode=permissive"""
    loaded = load_config(overrides=text.split(), environment={})
    assert (loaded.ignored, loaded.unprotected) == ({}, {})
    assert load_config(overrides=["tls.server.mode=disabled"], environment={}).unprotected == {}


PROTECTION = {"tls.test.mode.enable": "true"}


@pytest.mark.parametrize(("key", "value"), PROTECTION.items())
def test_protection_that_does_not_exist_ends_the_start(
    key: str, value: str, tmp_path: Path
) -> None:
    """From a file, a flag and the environment; only an operator's own word starts it open."""
    path = tmp_path / "broker.conf"
    path.write_text(f"{key}={value}\n")
    refused = rf"{re.escape(key)}={value} .*cannot be served: .*, or start with --insecure$"
    with pytest.raises(ConfigError, match=refused):
        load_config(str(path), environment={})
    variable = f"COMETMQ_BROKER_{key.replace('.', '_').upper()}"
    with pytest.raises(ConfigError, match=refused):
        load_config(environment={variable: value})
    loaded = load_config(str(path), environment={}, is_insecure=True)
    assert loaded.unprotected == {key: value}
    assert loaded.ignored == {}


def test_defaults_are_those_of_rocketmq() -> None:
    """A sample across the table (docs/internals/store.md#settings)."""
    config = BrokerConfig()
    assert (config.listen_port, config.broker_cluster_name) == (10911, "DefaultCluster")
    assert config.mapped_file_size_commit_log == 1 << 30
    assert config.max_message_size == 4 << 20
    assert config.default_topic_queue_nums == 8


def test_later_sources_win(tmp_path: Path) -> None:
    """File, then environment, then flags."""
    path = tmp_path / "b.conf"
    path.write_text("listenPort=1\nbrokerName=f\nregionId=f\n")
    environment = {
        "COMETMQ_BROKER_LISTEN_PORT": "2",
        "COMETMQ_BROKER_NAME": "e",
        "NAMESRV_ADDR": "127.0.0.1:9876; 127.0.0.2:9876",
        "COMETMQ_OTHER": "not ours",
    }
    config = load_config(str(path), overrides=["listenPort=3"], environment=environment).config
    assert (config.listen_port, config.broker_name, config.region_id) == (3, "e", "f")
    assert config.name_servers() == ("127.0.0.1:9876", "127.0.0.2:9876")


def test_toml_with_and_without_a_table(tmp_path: Path) -> None:
    """TOML carries typed values under the same key names."""
    path = tmp_path / "b.toml"
    path.write_text('listenPort = 5\n[broker]\nbrokerName = "t"\nautoCreateTopicEnable = false\n')
    config = load_config(str(path), environment={}).config
    assert (config.listen_port, config.broker_name) == (5, "t")
    assert not config.auto_create_topic_enable


def test_the_keys_of_tiered_storage_are_known() -> None:
    """Its plug-in reads its settings from the broker's own file."""
    tiered = {"tieredBackendServiceProvider": "x", "tieredStoreFileReservedTime": "72"}
    assert load_config(overrides=tiered, environment={}).ignored == tiered


def test_keys_without_effect_are_listed() -> None:
    """Known to RocketMQ, accepted, reported."""
    loaded = load_config(overrides={"sendMessageThreadPoolNums": "4"}, environment={})
    assert loaded.ignored == {"sendMessageThreadPoolNums": "4"}
    assert "sendMessageThreadPoolNums" in ignored_keys()
    assert not set(ignored_keys()) & {*effective_keys(), *DEMANDS}


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("listnPort=1", "unknown configuration key listnPort; did you mean listenPort"),
        ("zzzzqqqq=1", "unknown configuration key zzzzqqqq"),
        ("listenPort=99999", "listenPort=99999 .*from 0 to 65535"),
        ("listenPort=abc", "listenPort=abc .*a whole number"),
        ("autoCreateTopicEnable=maybe", "autoCreateTopicEnable=maybe .*true | false"),
        ("flushDiskType=OFTEN", "ASYNC_FLUSH | SYNC_FLUSH"),
        ("brokerRole=SLAVE", "brokerRole=SLAVE with brokerId=0 .*an id of its own above 0"),
        ("brokerRole=MASTER", "ASYNC_MASTER | SYNC_MASTER | SLAVE"),
        ("enableDLegerCommitLog=true", "DLedger is not part"),
        ("enableDLegerCommitLog=True", "DLedger is not part"),
        ("namesrvAddr=localhost", "is not host:port"),
        ("deleteWhen=25", "hours 00-23"),
        ("mappedFileSizeConsumeQueue=21", "multiple of 20"),
        ("brokerName=a b", "brokerName=a b"),
        ("oops", "not of the form key=value"),
    ],
)
def test_faults_name_key_value_and_range(setting: str, message: str) -> None:
    """Every refusal says what was given and what is accepted."""
    with pytest.raises(ConfigError, match=message.replace("|", r"\|")):
        load_config(overrides=[setting], environment={})


def test_unknown_environment_variable_is_refused() -> None:
    """A typo in a container's settings must not pass silently."""
    with pytest.raises(ConfigError, match="COMETMQ_BROKER_LISTNPORT; did you mean listenPort"):
        load_config(environment={"COMETMQ_BROKER_LISTNPORT": "1"})


@pytest.mark.parametrize("text", ["listenPort=1\n\x00=", "= =\n\n====", "brokerName", "\\", "a\\"])
def test_a_config_file_cut_in_half_is_a_clear_answer(text: str, tmp_path: Path) -> None:
    """Either it loads or one ConfigError says why."""
    path = tmp_path / "broker.conf"
    path.write_text(text)
    with contextlib.suppress(ConfigError):
        loaded = load_config(str(path), environment={})
        assert loaded.config.broker_cluster_name == "DefaultCluster"
    assert path.read_text() == text


def test_unreadable_files_are_named(tmp_path: Path) -> None:
    """Missing, not text, not TOML."""
    with pytest.raises(ConfigError, match="cannot read configuration file"):
        load_config(str(tmp_path / "none.conf"), environment={})
    (tmp_path / "b.conf").write_bytes(b"a=\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8 text at byte 2"):
        load_config(str(tmp_path / "b.conf"), environment={})
    (tmp_path / "b.toml").write_text("a = ")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load_config(str(tmp_path / "b.toml"), environment={})


def test_properties_text_is_what_the_broker_answers() -> None:
    """GET_BROKER_CONFIG: one key=value a line, booleans in lower case."""
    parsed = parse_properties(BrokerConfig(broker_name="b").properties_text())
    assert parsed["brokerName"] == "b"
    assert parsed["autoCreateTopicEnable"] == "true"
    listed = {key: demand.value for key, demand in DEMANDS.items() if demand.value}
    secret = {"tls.server.keyPassword", "tls.client.keyPassword"}
    assert set(parsed) == effective_keys().keys() - secret | listed.keys()
    assert parsed.items() >= listed.items()
