"""Topics, groups and locks that a full disk does not take, and growths whose steps it stops.

The file system is a real one of some megabytes, as in `test_full_disk`.
"""

import asyncio
import contextlib
import json
from collections import defaultdict
from pathlib import Path

import pytest
from tests.crash.test_full_disk import mounted
from tests.crash.test_full_disk_order import SETTINGS as LARGE_FILES
from tests.crash.test_full_disk_order import Filler
from tests.crash.test_kill9 import BrokerProcess
from tests.raw_client import RawClient
from tests.unit.client.growing_stage import on_loop, until

from cometmq import Admin, Message, Producer, PushConsumer, ReceivedMessage
from cometmq.client.extensions import growing_admin
from cometmq.core.extensions.growing import Growth
from cometmq.errors import CometError
from cometmq.model import MessageQueue
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.model.topic import TopicConfig
from cometmq.store.base.disk import RealDisk
from cometmq.testing import embedded_cluster
from cometmq.wire.body.admin import encode_group_config
from cometmq.wire.body.client import LockBatchRequest, LockBatchResponse
from cometmq.wire.command.command import RemotingCommand

pytestmark = [pytest.mark.timeout(120)]

LIMIT_S = 60.0
# Space is looked at often enough for those who wait for it.
SETTINGS = LARGE_FILES | {"cleanResourceInterval": 100}
TOPIC = "Growing"
GROUPS = 6


def create_topic(client: RawClient, topic: str) -> RemotingCommand:
    """UPDATE_AND_CREATE_TOPIC."""
    return client.call(
        17,
        {
            "topic": topic,
            "defaultTopic": "TBW102",
            "readQueueNums": "2",
            "writeQueueNums": "2",
            "perm": "6",
            "topicFilterType": "SINGLE_TAG",
            "topicSysFlag": "0",
            "order": "false",
        },
    )


def create_group(client: RawClient, group: str) -> RemotingCommand:
    """UPDATE_AND_CREATE_SUBSCRIPTIONGROUP."""
    return client.call(200, {}, encode_group_config(SubscriptionGroupConfig(group)))


def locked(client: RawClient, client_id: str, *queue_ids: int) -> list[int]:
    """LOCK_BATCH_MQ: the queues that are the client's now."""
    queues = [MessageQueue("Kept", "broker-a", queue_id) for queue_id in queue_ids]
    answer = client.call(41, {}, LockBatchRequest("readers", client_id, tuple(queues)).encode())
    assert answer.code == 0, answer.remark
    return [queue.queue_id for queue in LockBatchResponse.decode(answer.body).queues]


@pytest.mark.processes
def test_what_a_restart_would_forget_is_not_acknowledged(tmp_path: Path) -> None:
    """The refusal names file, cause and remedy; what was acknowledged outlives a kill."""
    with mounted(tmp_path / "disk") as disk:
        filler = Filler(disk)
        more = ["cleanFileForciblyEnable=false", "diskSpaceWarningLevelRatio=99"]
        more += ["brokerName=broker-a"]
        broker = BrokerProcess(disk / "store", "ASYNC_FLUSH", more)
        broker.wait_until_ready()
        with RawClient(broker.address) as client:
            assert create_topic(client, "Kept").code == 0
            assert create_group(client, "kept").code == 0
            assert locked(client, "one", 0) == [0]
            filler.fill()
            for answer, name in (
                (create_topic(client, "Refused"), "topics.json"),
                (create_topic(client, "Refused"), "topics.json"),
                (client.call(351, {"topic": "Refused"}), "topics.json"),
                (client.call(215, {"topic": "Kept"}), "topics.json"),
                (create_group(client, "refused"), "subscriptionGroup.json"),
                (client.call(207, {"groupName": "kept"}), "subscriptionGroup.json"),
            ):
                assert answer.code == 14, f"{answer.code} {answer.remark}"
                for text in (name, "No space left", "a restart forgets", "make room", "are free"):
                    assert text in (answer.remark or ""), answer.remark
            # Nobody but an owner the file names has a queue, and that one keeps it.
            assert locked(client, "one", 0, 1) == [0]
            assert locked(client, "two", 1) == []
        broker.kill()
        filler.empty()
        broker = BrokerProcess(disk / "store", "ASYNC_FLUSH", more)
        broker.wait_until_ready()
        with RawClient(broker.address) as client:
            assert client.call(351, {"topic": "Kept"}).code == 0
            assert client.call(351, {"topic": "Refused"}).code == 17
            known = json.loads(client.call(201, {}).body)["subscriptionGroupTable"]
            assert "kept" in known
            assert "refused" not in known
            assert locked(client, "two", 0, 1) == [1]
            assert create_topic(client, "Refused").code == 0
        broker.kill()
        broker = BrokerProcess(disk / "store", "ASYNC_FLUSH", more)
        broker.wait_until_ready()
        with RawClient(broker.address) as client:
            assert client.call(351, {"topic": "Refused"}).code == 0
        assert broker.stop() == 0


@on_loop
async def test_a_refused_change_is_written_when_there_is_room(tmp_path: Path) -> None:
    """Without anybody asking again; a send to a topic made for it is refused until then."""
    with mounted(tmp_path / "disk") as disk, pytest.MonkeyPatch.context() as patch:
        # Above a mark every send is refused, as soon as somebody looks; this is about the files.
        patch.setattr(RealDisk, "usage", lambda self, path: (100, 50))
        filler = Filler(disk)
        async with embedded_cluster(SETTINGS, store_path=str(disk / "store")) as cluster:
            address = cluster.name_server_address
            async with (
                Admin(name_server=address) as admin,
                Producer("p", name_server=address, retries=0) as producer,
            ):
                await admin.create_topic("Known", queue_count=1)
                await producer.send(Message("Known", b"before"))
                await fill(filler)
                with pytest.raises(CometError, match=r"topics\.json could not be written"):
                    await admin.create_topic("Late", queue_count=1)
                # There is room in the log for small ones, and their topic is in the file.
                await producer.send(Message("Known", b"while it is full"))
                with pytest.raises(CometError, match=r"topics\.json could not be written"):
                    await producer.send(Message("Made", b"in a topic that no file has"))
                filler.empty()
                path = disk / "store" / "config" / "topics.json"
                await until(lambda: "Late" in path.read_text(), LIMIT_S)
                assert "Made" in path.read_text()
                await producer.send(Message("Made", b"again"))


class Sent:
    """What a producer was told, by message group."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._numbers: defaultdict[int, int] = defaultdict(int)
        self.bodies: defaultdict[int, list[int]] = defaultdict(list)
        self.refusals: list[str] = []

    async def send(self, count: int) -> None:
        """Some messages of each group; refused ones are not sent again."""
        for group in range(GROUPS):
            for _ in range(count):
                self._numbers[group] += 1
                number = self._numbers[group]
                body = f"{group}:{number}".encode()
                try:
                    await self._producer.send(
                        Message(TOPIC, body, message_group=f"group-{group}"), timeout_ms=1_500
                    )
                except CometError as error:
                    self.refusals.append(str(error))
                else:
                    self.bodies[group].append(number)


async def fill(filler: Filler) -> None:
    """Also what a write that was under way gives back."""
    filler.fill()
    await asyncio.sleep(0.1)
    filler.fill()


def moved(attributes: dict[str, str]) -> int:
    """How many buckets a topic's attributes say have moved."""
    growth = Growth.from_attributes(attributes, "broker-a")
    return 0 if growth is None else sum(bits.bit_count() for bits in growth.moved.values())


class Handled:
    """What a consumer has handled, by message group; it waits where it is told to."""

    def __init__(self) -> None:
        self.numbers: defaultdict[int, list[int]] = defaultdict(list)
        self.may_go_on = asyncio.Event()
        self.may_go_on.set()

    @property
    def count(self) -> int:
        """All of them."""
        return sum(map(len, self.numbers.values()))

    async def handle(self, message: ReceivedMessage) -> None:
        """The handler."""
        await self.may_go_on.wait()
        group, _, number = message.body.decode().partition(":")
        if int(number) not in self.numbers[int(group)]:
            self.numbers[int(group)].append(int(number))

    def has(self, sent: Sent) -> bool:
        """Whether everything that was acknowledged is among it."""
        return all(set(sent.bodies[group]) <= set(self.numbers[group]) for group in sent.bodies)

    def check_order(self, sent: Sent) -> None:
        """What was acknowledged came in the order of its sends."""
        for group, numbers in self.numbers.items():
            known = [number for number in numbers if number in sent.bodies[group]]
            assert known == sorted(known)


async def until_grown(admin: Admin) -> None:
    """Go on with the growth wherever it is, as an operator does."""
    async with asyncio.timeout(LIMIT_S):
        while True:
            with contextlib.suppress(CometError):
                status = await admin.topic_growth(TOPIC)
                if status.phase in {"none", "prepared"}:
                    await admin.grow_topic(TOPIC, 5)
                elif status.phase == "moving":
                    await admin.close_topic_growth(TOPIC)
                elif status.is_complete:
                    return
            await asyncio.sleep(0.1)


async def stop_a_growth(
    disk: Path, step: str, monkeypatch: pytest.MonkeyPatch, admin: Admin, sent: Sent, did: Handled
) -> None:
    """Let a full disk stop a growth at one of its steps, and look at what holds then."""
    filler = Filler(disk)
    topics = disk / "store" / "config" / "topics.json"
    write = growing_admin._write

    def on_disk() -> dict[str, str]:
        found = json.loads(topics.read_text())["topicConfigTable"][TOPIC]
        attributes: dict[str, str] = found.get("attributes", {})
        return attributes

    async def write_on_a_full_disk(
        admin: Admin, address: str, name: str, config: TopicConfig, growth: Growth
    ) -> None:
        if growth.phase.value == step:
            await fill(filler)
        await write(admin, address, name, config, growth)

    monkeypatch.setattr(growing_admin, "_write", write_on_a_full_disk)
    refused = pytest.raises(CometError, match=r"topics\.json could not be written")
    with refused if step in {"prepared", "moving"} else contextlib.nullcontext():
        await admin.grow_topic(TOPIC, 5)
    if step == "marking":
        await fill(filler)
    with refused if step == "closing" else contextlib.nullcontext():
        if step == "closing":
            await admin.close_topic_growth(TOPIC)
    before = on_disk()
    did.may_go_on.set()
    await sent.send(2)
    assert on_disk() == before
    assert before.get("group.phase") != step
    # Nobody is told of a move that is not on disk.
    with contextlib.suppress(CometError):
        assert (await admin.topic_growth(TOPIC)).moved == moved(before)
    filler.empty()
    monkeypatch.setattr(growing_admin, "_write", write)
    await until_grown(admin)
    assert on_disk()["group.moved"] == "0:*;1:*"


async def grow_on_a_full_disk(disk: Path, step: str, monkeypatch: pytest.MonkeyPatch) -> int:
    """Send and handle messages of groups before, while and after; how many were handled."""
    did = Handled()
    async with embedded_cluster(SETTINGS, store_path=str(disk / "store")) as cluster:
        address = cluster.name_server_address
        async with (
            Admin(name_server=address) as admin,
            # A full disk is no restart to be waited for: a refusal comes back at once.
            Producer("p", name_server=address, retries=0) as producer,
            PushConsumer(
                "readers", {TOPIC: "*"}, did.handle, name_server=address,
                consume_from="first", order="group",
            ) as consumer,
        ):  # fmt: skip
            await admin.create_topic(TOPIC, queue_count=2)
            sent = Sent(producer)
            await sent.send(2)
            await until(lambda: did.count == 2 * GROUPS, LIMIT_S)
            did.may_go_on.clear()
            await sent.send(1)
            await stop_a_growth(disk, step, monkeypatch, admin, sent, did)
            async with asyncio.timeout(LIMIT_S):
                while True:
                    # The watermark refuses until space is measured again.
                    refused = len(sent.refusals)
                    await sent.send(1)
                    if len(sent.refusals) == refused:
                        break
            # The new queues are due at the next look at routes, which comes every 30 s.
            instance = consumer._instance
            assert instance is not None
            await instance.refresh_routes()
            await until(lambda: did.has(sent), LIMIT_S)
            did.check_order(sent)
    return did.count


@pytest.mark.parametrize("step", ["prepared", "moving", "marking", "closing"])
def test_a_growth_goes_on_where_a_full_disk_stopped_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """No group moves on what no file has; with room the growth ends, in order and complete."""
    with mounted(tmp_path / "disk") as disk:
        handled = asyncio.run(grow_on_a_full_disk(disk, step, monkeypatch))
    assert handled >= 4 * GROUPS
