"""A scripted peer: name server and broker in one small object, with faults on request.

Job: let a test say exactly what the other side does (refuse, stay silent, close, answer late),
which a real broker cannot be asked for.  Everything else of the client is tested against the
real broker.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field

from cometmq.codec.batch import decode_batch
from cometmq.codec.ids import encode_host, offset_message_id
from cometmq.codec.stored_message import encode_message
from cometmq.model.topic import BrokerData, QueueData, TopicRoute
from cometmq.net.env import system_environment
from cometmq.net.server import Handler, RemotingServer, ServerConnection
from cometmq.wire.body.client import ConsumerListBody, HeartbeatData
from cometmq.wire.body.route import encode_topic_route
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.header.headers import (
    ConsumerSendMsgBackHeader,
    PullMessageHeader,
    SendMessageHeader,
    UpdateConsumerOffsetHeader,
)

HOST = encode_host("127.0.0.1:10911")
Override = Callable[[RemotingCommand, ServerConnection], RemotingCommand | None]


@dataclass
class FakeBroker:
    """In-memory queues behind real sockets; ``override[code]`` replaces an answer."""

    topics: dict[str, int]
    name: str = "broker-a"
    queues: dict[tuple[str, int], list[bytes]] = field(default_factory=lambda: defaultdict(list))
    offsets: dict[tuple[str, str, int], int] = field(default_factory=dict)
    seen: list[RemotingCommand] = field(default_factory=list)
    heartbeats: list[HeartbeatData] = field(default_factory=list)
    back: list[ConsumerSendMsgBackHeader] = field(default_factory=list)
    override: dict[int, Override] = field(default_factory=dict)
    peers: dict[str, ServerConnection] = field(default_factory=dict)
    members: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    held: list[tuple[RemotingCommand, ServerConnection]] = field(default_factory=list)
    extra_brokers: list[BrokerData] = field(default_factory=list)
    extra_queues: dict[str, list[QueueData]] = field(default_factory=dict)
    physical: int = 0
    port: int = 0
    name_port: int = 0

    async def start(self) -> None:
        handlers: dict[int, Handler] = dict.fromkeys(map(int, RequestCode), self._serve)
        self.loop = asyncio.get_running_loop()
        self.server = RemotingServer(system_environment(), handlers)
        self.port = await self.server.listen("127.0.0.1", self.port)
        self.name_port = await self.server.listen("127.0.0.1", self.name_port)

    async def stop(self) -> None:
        await self.server.stop()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def name_server(self) -> str:
        return f"127.0.0.1:{self.name_port}"

    def codes(self) -> list[int]:
        return [command.code for command in self.seen]

    def route(self, topic: str) -> TopicRoute | None:
        count = self.topics.get(topic)
        if count is None:
            return None
        return TopicRoute(
            (QueueData(self.name, count, count, 6), *self.extra_queues.get(topic, [])),
            (BrokerData("c", self.name, {0: self.address}), *self.extra_brokers),
        )

    def store(self, topic: str, queue_id: int, body: bytes, properties: bytes) -> tuple[int, str]:
        records = self.queues[topic, queue_id]
        queue_offset = len(records)
        self.physical += 1000
        records.append(
            encode_message(
                topic,
                body,
                properties,
                queue_id=queue_id,
                queue_offset=queue_offset,
                physical_offset=self.physical,
                born_host=HOST,
                store_host=HOST,
            )
        )
        for command, connection in [*self.held]:
            header = PullMessageHeader.from_command(command)
            if (header.topic, header.queue_id) == (topic, queue_id):
                self.held.remove((command, connection))
                answer = self._pull(command, connection)
                assert answer is not None
                answer.opaque = command.opaque
                connection.send(encode_command(answer))
        return queue_offset, offset_message_id(HOST, self.physical)

    def _serve(
        self, command: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> RemotingCommand | None:
        self.seen.append(command)
        replaced = self.override.get(command.code)
        if replaced is not None:
            return replaced(command, connection)
        return self.ordinary(command, connection)

    def ordinary(  # noqa: C901 - a table in the form of code
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        """What a broker would answer."""
        ext = command.ext_fields
        code = command.code
        if code == 105:
            route = self.route(ext["topic"])
            if route is None:
                return command.answer(17, "no route")
            return command.answer(0, None, {}, encode_topic_route(route))
        if code in (310, 320):
            return self._send(command)
        if code in (11, 361):
            return self._pull(command, connection)
        if code == 34:
            heartbeat = HeartbeatData.decode(command.body)
            self.heartbeats.append(heartbeat)
            self.peers[heartbeat.client_id] = connection
            for consumer in heartbeat.consumers:
                self.members[consumer.group_name].add(heartbeat.client_id)
                self.topics.setdefault(f"%RETRY%{consumer.group_name}", 1)
            return command.answer(0, None, {})
        if code == 38:
            members = tuple(self.members[ext["consumerGroup"]])
            return command.answer(0, None, {}, ConsumerListBody(members).encode())
        if code == 14:
            key = (ext["consumerGroup"], ext["topic"], int(ext["queueId"]))
            if key not in self.offsets:
                return command.answer(22, "not found", {})
            return command.answer(0, None, {"offset": str(self.offsets[key])})
        if code == 15:
            header = UpdateConsumerOffsetHeader.from_command(command)
            key = (header.consumer_group, header.topic, header.queue_id)
            self.offsets[key] = header.commit_offset
            return None if command.is_oneway else command.answer(0, None, {})
        if code in (30, 31, 29):
            size = len(self.queues[ext["topic"], int(ext["queueId"])])
            return command.answer(0, None, {"offset": str(size if code == 30 else 0)})
        if code == 36:
            self.back.append(ConsumerSendMsgBackHeader.from_command(command))
            return command.answer(0, None, {})
        if code == 35:
            self.members[ext.get("consumerGroup", "")].discard(ext["clientID"])
            return command.answer(0, None, {})
        return command.answer(3, "not supported", {})

    def _send(self, command: RemotingCommand) -> RemotingCommand | None:
        header = SendMessageHeader.from_command(command)
        if header.topic not in self.topics:
            self.topics[header.topic] = 4
        items = (
            decode_batch(command.body)
            if command.code == 320
            else [(0, command.body, (header.properties or "").encode())]
        )
        stored = [
            self.store(header.topic, header.queue_id, body, properties)
            for _, body, properties in items
        ]
        if command.is_oneway:
            return None
        ext = {
            "msgId": ",".join(message_id for _, message_id in stored),
            "queueId": str(header.queue_id),
            "queueOffset": str(stored[0][0]),
        }
        return command.answer(0, None, ext)

    def _pull(
        self, command: RemotingCommand, connection: ServerConnection
    ) -> RemotingCommand | None:
        header = PullMessageHeader.from_command(command)
        if header.sys_flag & 1:
            key = (header.consumer_group, header.topic, header.queue_id)
            self.offsets[key] = header.commit_offset
        records = self.queues[header.topic, header.queue_id]
        begin = header.queue_offset
        ext = {
            "suggestWhichBrokerId": "0",
            "minOffset": "0",
            "maxOffset": str(len(records)),
            "nextBeginOffset": str(begin),
        }
        if begin > len(records):
            return command.answer(21, "moved", ext | {"nextBeginOffset": str(len(records))})
        if begin == len(records):
            if header.sys_flag & 2:
                self.held.append((command, connection))
                return None
            return command.answer(19, "nothing", ext)
        found = records[begin : begin + min(32, header.max_msg_nums)]
        return command.answer(
            0, "FOUND", ext | {"nextBeginOffset": str(begin + len(found))}, b"".join(found)
        )

    def push(self, client_id: str, command: RemotingCommand) -> None:
        """Send a one-way request to a client."""
        self.peers[client_id].oneway(command)
