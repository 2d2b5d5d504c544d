"""UPDATE_BROKER_CONFIG: what changes in a running broker, what is refused, what is written."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, eventually, running, scenario

from cometmq.broker import Broker, load_config
from cometmq.broker.admin.config import LIVE_KEYS
from cometmq.broker.base.config import effective_keys
from cometmq.codec.java_properties import parse_properties
from cometmq.model.offsets import ConsumerOffset
from cometmq.namesrv.config import NameServerConfig
from cometmq.namesrv.name_server import NameServer
from cometmq.net.env import system_environment
from cometmq.store.base.disk import RealDisk
from cometmq.wire.body.route import decode_data_version
from cometmq.wire.command.codes import RequestCode as Code


async def change(client: Client, text: str) -> tuple[int, str]:
    answer = await client.call(Code.UPDATE_BROKER_CONFIG, {}, text.encode())
    return answer.code, answer.remark or ""


def test_the_sizes_of_an_existing_store_are_shown(tmp_path: Path) -> None:
    """GET_BROKER_CONFIG shows the sizes that the files have, also after a change of another key."""
    sizes = {
        "mappedFileSizeCommitLog": "2097152",
        "mappedFileSizeConsumeQueue": "60000",
        "mappedFileSizeTimerLog": "65536",
        "maxHashSlotNum": "200",
        "maxIndexNum": "800",
    }

    async def fill(broker: Broker, client: Client) -> None:
        del broker
        due_ms = system_environment().clock.now_ms() + 3_600_000
        for _ in range(2):
            assert (await client.send(b"ab", i="KEYS\x01k")).code == 0
        timed = await client.send(b"later", i=f"KEYS\x01k\x02TIMER_DELIVER_MS\x01{due_ms}")
        assert timed.code == 0

    async def story(broker: Broker, client: Client) -> None:
        for _ in range(2):
            answer = await client.call(Code.GET_BROKER_CONFIG)
            shown = parse_properties(answer.body.decode())
            assert sizes.items() <= shown.items()
            assert await change(client, "defaultQueryMaxNum=40") == (0, "")
        assert broker.timers.pending_count() == 1
        assert [message.body for message in await client.messages()] == [b"ab", b"ab"]

    scenario(tmp_path, fill, timerWheelEnable=True, **sizes)
    scenario(tmp_path, story, timerWheelEnable=True)


def test_a_change_is_shown_and_written(tmp_path: Path) -> None:
    """26 shows it at once with a newer version, and the file in the store has only that key."""

    async def story(broker: Broker, client: Client) -> None:
        before = await client.call(Code.GET_BROKER_CONFIG)
        assert await change(client, "defaultQueryMaxNum=40\nfileReservedTime = 9\n") == (0, "")
        after = await client.call(Code.GET_BROKER_CONFIG)
        shown = parse_properties(after.body.decode())
        assert (shown["defaultQueryMaxNum"], shown["fileReservedTime"]) == ("40", "9")
        assert broker.config.default_query_max_num == 40
        versions = [
            decode_data_version(answer.ext_fields["version"].encode()) for answer in (before, after)
        ]
        assert versions[1].counter > versions[0].counter
        path = tmp_path / "config" / "broker.properties"
        assert path.read_text() == "defaultQueryMaxNum=40\nfileReservedTime=9\n"
        assert await change(client, "defaultQueryMaxNum=41") == (0, "")
        assert path.read_text() == "defaultQueryMaxNum=41\nfileReservedTime=9\n"
        assert "40" in path.with_name("broker.properties.bak").read_text()

    scenario(tmp_path, story)


@pytest.mark.parametrize(
    ("text", "code", "remark"),
    [
        ("noSuchKey=1", 29, "unknown configuration key noSuchKey"),
        ("listenport=1", 29, "did you mean listenPort?"),
        ("defaultQueryMaxNum=many", 29, "expected a whole number from 1 to 2147483647"),
        ("longPollingEnable=7", 29, "longPollingEnable=7 (update) is not accepted"),
        ("deleteWhen=99", 29, "expected hours 00-23"),
        ("sendMessageThreadPoolNums=8", 29, "sendMessageThreadPoolNums has no effect in CometMQ"),
        ("listenPort=1", 29, "listenPort cannot change while the broker runs"),
        ("maxMessageSize=1\nbrokerName=x", 29, "brokerName, maxMessageSize cannot change"),
        ("brokerConfigPath=/etc/passwd", 16, "Can not update config in black list."),
        ("configBlackList=", 16, "Can not update config in black list."),
        ("rocketmqHome=/x", 16, "Can not update config in black list."),
        ("brokerRole=SLAVE\nbrokerId=1", 29, "brokerId, brokerRole cannot change"),
        ("brokerRole=SYNC_MASTER", 29, "brokerRole cannot change while the broker runs"),
        ("inSyncReplicas=2", 29, "set brokerRole=SYNC_MASTER"),
        ("totalReplicas=2", 29, "cannot be served: replica sets"),
        ("aclEnable=true", 16, "Can not update config in black list."),
        ("tls.server.mode=enforcing", 16, "Can not update config in black list."),
        ("haListenPort=1", 29, "haListenPort cannot change while the broker runs"),
    ],
)
def test_what_is_refused(text: str, code: int, remark: str, tmp_path: Path) -> None:
    """With cause and next step; of several keys none is changed, and nothing is written."""

    async def story(broker: Broker, client: Client) -> None:
        before = broker.config
        answer = await change(client, f"shortPollingTimeMills=77\n{text}")
        assert answer[0] == code
        assert remark in answer[1]
        assert broker.config == before
        assert not (tmp_path / "config" / "broker.properties").exists()

    scenario(tmp_path, story)


def test_odd_bodies(tmp_path: Path) -> None:
    """Nothing to change is no fault, what is no text is; a fixed key with its own value is fine."""

    async def story(broker: Broker, client: Client) -> None:
        assert await change(client, "") == (0, "")
        assert await change(client, "# only a comment\n") == (0, "")
        answer = await client.call(Code.UPDATE_BROKER_CONFIG, {}, b"a=\xff\xfe")
        assert (answer.code, "not UTF-8 text at byte 2" in (answer.remark or "")) == (29, True)
        assert await change(client, "brokerName=broker-a\nlongPollingEnable=false") == (0, "")
        assert await change(client, "brokerRole=ASYNC_MASTER\ninSyncReplicas=1") == (0, "")
        assert not broker.state.config.long_polling_enable

    scenario(tmp_path, story)


def test_a_black_list_of_ones_own(tmp_path: Path) -> None:
    """``configBlackList`` protects what it names."""

    async def story(broker: Broker, client: Client) -> None:
        answer = await change(client, "shortPollingTimeMills=77\nfileReservedTime=1")
        assert answer == (16, "Can not update config in black list.")
        assert broker.config.short_polling_time_mills == 1000
        assert await change(client, "shortPollingTimeMills=77") == (0, "")

    scenario(tmp_path, story, configBlackList="fileReservedTime; deleteWhen")


def test_every_live_key_is_one_of_ours() -> None:
    """The list names effective keys only."""
    assert effective_keys().keys() >= LIVE_KEYS
    assert len(LIVE_KEYS) >= 28


def test_keys_take_effect(tmp_path: Path) -> None:
    """Those that someone has a copy of: creation of topics and groups, permission, sends, files."""

    async def story(broker: Broker, client: Client) -> None:
        state = broker.state
        assert (await client.send(b="first")).code == 0
        assert await change(client, "autoCreateTopicEnable=false") == (0, "")
        assert (await client.send(b="second")).code == 17
        assert (await client.send(b="first")).code == 0
        assert await change(client, "autoCreateTopicEnable=true") == (0, "")
        assert (await client.send(b="second")).code == 0
        assert await change(client, "autoCreateSubscriptionGroup=false") == (0, "")
        assert (await client.pull(topic="first", consumerGroup="fresh")).code == 26
        assert await change(client, "startAcceptSendRequestTimeStamp=99999999999999") == (0, "")
        assert (await client.send(b="first")).code == 1
        assert await change(client, "startAcceptSendRequestTimeStamp=0") == (0, "")
        assert (await client.send(b="first")).code == 0
        version = state.topics.version
        assert await change(client, "brokerPermission=2") == (0, "")
        assert (await client.pull(topic="first", consumerGroup="TOOLS_CONSUMER")).code == 16
        assert state.topics.version.counter > version.counter
        text = "deleteWhen=03;15\ndiskMaxUsedSpaceRatio=60\ncleanFileForciblyEnable=false"
        assert await change(client, text) == (0, "")
        settings = state.store._retention._config
        assert settings.delete_when == (3, 15)
        assert (settings.disk_used_percent_max, settings.is_clean_forced) == (60, False)
        assert settings.store_host == state.host
        assert await change(client, "consumerOffsetUpdateVersionStep=1") == (0, "")
        before = state.offsets.version
        state.offsets.commit("g", "first", 0, ConsumerOffset(1), 1)
        assert state.offsets.version.counter > before.counter

    scenario(tmp_path, story)


def test_name_servers_can_be_replaced(tmp_path: Path) -> None:
    """The broker registers with the new one and leaves the old one; topics are answered for."""

    async def main() -> None:
        env = system_environment()
        servers = [
            NameServer(
                NameServerConfig(
                    listen_port=0,
                    bind_address="127.0.0.1",
                    kv_config_path=str(tmp_path / name),
                    config_store_path=str(tmp_path / name),
                ),
                env,
                RealDisk(),
            )
            for name in ("a", "b")
        ]
        for server in servers:
            await server.start()
        first, second = servers
        async with running(tmp_path / "store", namesrvAddr=first.address) as broker:
            client = await Client(env, broker.address).open()
            assert first.routes.route("TBW102") is not None
            assert await change(client, f"namesrvAddr={second.address}") == (0, "")
            await eventually(lambda: second.routes.route("TBW102") is not None)
            await eventually(lambda: first.routes.route("TBW102") is None)
            topic = {"topic": "late", "defaultTopic": "TBW102", "readQueueNums": "1"}
            topic |= {"writeQueueNums": "1", "perm": "6", "topicFilterType": "SINGLE_TAG"}
            made = await client.call(Code.UPDATE_AND_CREATE_TOPIC, {**topic, "order": "false"})
            assert made.code == 0
            assert second.routes.route("late") is not None
            assert (await change(client, "namesrvAddr=nowhere"))[0] == 29
            assert await change(client, f"namesrvAddr={first.address};{second.address}") == (0, "")
            await eventually(lambda: first.routes.route("late") is not None)
            await client.close()
        assert [server.routes.route("TBW102") for server in servers] == [None, None]
        for server in servers:
            await server.stop()

    asyncio.run(main())


def test_intervals_take_effect(tmp_path: Path) -> None:
    """Offsets are written at the new pace, from the period after the running one on."""
    settings = {"flushConsumerOffsetInterval": 20, "flushDelayOffsetInterval": 20}

    async def story(broker: Broker, client: Client) -> None:
        assert await change(client, "flushConsumerOffsetInterval=10") == (0, "")
        broker.state.offsets.commit("g", "t", 0, ConsumerOffset(7), 1)
        path = tmp_path / "config" / "consumerOffset.json"
        await eventually(lambda: path.exists() and '"t@g"' in path.read_text())
        assert broker.config.flush_consumer_offset_interval == 10

    scenario(tmp_path, story, **settings)


def test_the_file_of_the_start_is_written_line_by_line(tmp_path: Path) -> None:
    """Comments and other keys stay; the next start reads the change."""
    path = tmp_path / "broker.conf"
    path.write_text("# ours\nbrokerIP1 = 127.0.0.1\nlongPollingEnable=true\nuseTLS=false\n")
    overrides: dict[str, Any] = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "storePathRootDir": str(tmp_path / "store"),
        "mappedFileSizeCommitLog": 1 << 20,
        "maxHashSlotNum": 100,
        "maxIndexNum": 400,
    }
    loaded = load_config(str(path), overrides=overrides, environment={})
    assert loaded.path == str(path)

    async def main() -> None:
        broker = Broker(loaded.config, system_environment(), RealDisk(), config_path=loaded.path)
        await broker.start()
        client = await Client(broker.env, broker.address).open()
        assert await change(client, "longPollingEnable=false\nfileReservedTime=5") == (0, "")
        await client.close()
        await broker.stop()

    asyncio.run(main())
    assert path.read_text() == (
        "# ours\nbrokerIP1 = 127.0.0.1\nlongPollingEnable=false\nuseTLS=false\nfileReservedTime=5\n"
    )
    again = load_config(str(path), environment={}).config
    assert (again.long_polling_enable, again.file_reserved_time) == (False, 5)


def test_changes_at_once_are_all_written(tmp_path: Path) -> None:
    """Requests that come together are written one after the other."""

    async def story(broker: Broker, client: Client) -> None:
        numbers = range(40, 60)
        keys = ("defaultQueryMaxNum", "shortPollingTimeMills", "fileReservedTime")
        texts = [f"{keys[number % 3]}={number}" for number in numbers]
        answers = await asyncio.gather(*(change(client, text) for text in texts))
        assert {code for code, _ in answers} == {0}
        written = parse_properties((tmp_path / "config" / "broker.properties").read_text())
        assert sorted(written) == sorted(keys)
        shown = broker.config.to_properties()
        assert all(int(shown[key]) in numbers for key in keys)

    scenario(tmp_path, story)


def test_toml_is_not_written(tmp_path: Path) -> None:
    """A TOML file has no lines of properties to replace."""
    path = tmp_path / "broker.toml"
    path.write_text("listenPort = 5\n")
    assert load_config(str(path), environment={}).path is None
    assert load_config(None, environment={}).path is None


def test_a_disk_that_does_not_take_the_file(tmp_path: Path) -> None:
    """1 with the cause, and nothing is changed."""

    async def story(broker: Broker, client: Client) -> None:
        (tmp_path / "config" / "broker.properties").mkdir()
        code, remark = await change(client, "longPollingEnable=false")
        assert code == 1
        assert "broker.properties" in remark
        assert broker.config.long_polling_enable

    scenario(tmp_path, story)
