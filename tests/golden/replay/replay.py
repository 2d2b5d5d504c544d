"""Plays one capture against our servers, line by line, and collects unlisted differences.

Order is the capture's: a request leaves when its line comes, and everything our servers must have
done before the next line is waited for (an answer, or a barrier where none is due). Waiting is
shortened: pauses of the client vanish, a delay level is waited for in full, and a pull that timed
out in the capture is sent with a short hold.
"""

import asyncio
import json
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.golden.replay.captures import Line, Scenario, load_scenario
from tests.golden.replay.cluster import Client, Cluster, ReplayClock
from tests.golden.replay.compare import (
    MESSAGE_MAGIC,
    Difference,
    compare,
    place_of_send,
    properties_of,
    rewrite,
)
from tests.golden.replay.frames import Frame, encode_frame, loads_java, stored_messages
from tests.golden.replay.table import Table
from tests.golden.replay.translate import Translation, split_offset_id

__all__ = ["Counts", "replay"]

ANSWER_TIMEOUT_S = 8.0
"""Longer than the broker's sweep of held pulls, 5 s."""
SHORT_HOLD_MS = 50
LONG_HOLD_MS = 60_000
LONG_HOLD_MARGIN_MS = 3000
PULLS = {11, 361}
SUSPEND = 2
RESET = 222
QUERY = 12
AFTERWARDS_MS = 1000
BUILT_IN = {"TBW102", "RMQ_SYS_TRACE_TOPIC", "DefaultCluster", "broker-a"}
LEVELS_MS = [1000, 5000, 10_000, 30_000, *(60_000 * n for n in range(1, 15))]
DELAY_SLACK_S = 0.15
ADDED_BY_BROKER = {"MSG_REGION", "TRACE_ON", "CLUSTER"}


@dataclass
class Counts:
    """How many frames of a capture were sent, compared, deviating or skipped."""

    frames: int = 0
    sent: int = 0
    compared: int = 0
    deviating: int = 0
    skipped: int = 0
    extra: int = 0
    ignored_fields: int = 0
    unlisted: list[str] = field(default_factory=list)

    def numbers(self) -> dict[str, int]:
        """Return the counts that a table row asserts."""
        names = ("frames", "sent", "compared", "deviating", "skipped", "extra", "ignored_fields")
        return {name: getattr(self, name) for name in names}


async def replay(scenario: Scenario, table: Table, directory: Path) -> Counts:
    """Start a cluster, play the scenario, stop the cluster."""
    options = table.scenarios.get(scenario.name, {})
    skipped = lines_skipped(scenario, table)
    if len(skipped) == len(scenario.lines):
        return Counts(frames=len(scenario.lines), skipped=len(skipped))
    clock = ReplayClock(scenario.epoch_ms)
    cluster = Cluster(directory, clock)
    await cluster.start(options.get("settings", {}))
    try:
        player = _Player(scenario, table, cluster, clock, skipped)
        await player.prepare(options)
        await player.play()
        return player.counts
    finally:
        await cluster.stop()


def lines_skipped(scenario: Scenario, table: Table) -> frozenset[int]:
    """Return the line numbers that the table skips: requests, calls and their answers."""
    left_out: set[int] = set()
    for line in scenario.lines:
        if not line.is_request:
            continue
        properties = properties_of(line.frame)
        topic = line.frame.ext.get("topic", "")
        if table.permit(scenario.name, line.code, "skip", line.number, properties, topic):
            left_out.add(line.number)
            if line.answer is not None:
                left_out.add(line.answer.number)
    return frozenset(left_out)


class _Player:
    def __init__(
        self,
        scenario: Scenario,
        table: Table,
        cluster: Cluster,
        clock: ReplayClock,
        skipped: frozenset[int] = frozenset(),
    ) -> None:
        self.counts = Counts(frames=len(scenario.lines), skipped=len(skipped))
        self._scenario = scenario
        self._table = table
        self._clock = clock
        self._addresses = {
            "broker": cluster.broker.address,
            "namesrv": cluster.name_server.address,
        }
        self._chance = cluster.chance
        self._clients: dict[int, Client] = {}
        self._last_line = {line.connection: line.number for line in scenario.lines}
        self._ends_ms = {line.connection: line.at_ms for line in scenario.lines}
        self._skipped = skipped
        self._calls: dict[int, Frame] = {}
        self._heartbeats: dict[int, Any] = {}
        self._versions: dict[tuple[str, str], int] = {}
        self._delays: list[tuple[float, float]] = []
        self._pairs = Translation(
            cluster.broker.address,
            cluster.name_server.address,
            lambda topic: self._permit(0, f"shared {topic}", 0),
            clock.now_ms(),
            clock.now_ms,
        )

    def _permit(self, code: int, name: str, number: int) -> bool:
        return self._table.permit(self._scenario.name, code, name, number)

    # -- what stood before the capture began ---------------------------------------------------

    async def prepare(self, options: dict[str, Any]) -> None:
        """Make the topics that exist when the capture begins, and those that the table adds."""
        wanted = self._topics_found()
        wanted.update({name: (2, 2, perm) for name, perm in options.get("topics", {}).items()})
        broker = await Client.connect(self._addresses["broker"])
        name_server = await Client.connect(self._addresses["namesrv"])
        for topic, (read, write, perm) in wanted.items():
            if (await name_server.ask(105, {"topic": topic})).code == 0:
                continue  # a system topic
            ext = {
                "topic": topic,
                "defaultTopic": "TBW102",
                "readQueueNums": str(read),
                "writeQueueNums": str(write),
                "perm": str(perm),
                "topicFilterType": "SINGLE_TAG",
                "topicSysFlag": "0",
                "order": "false",
            }
            made = await broker.ask(17, ext)
            if made.code == 0:  # else another system topic, whose route will be judged
                await self._wait_for_route(name_server, topic)
        for key, value in options.get("order_conf", {}).items():
            ext = {"namespace": "ORDER_TOPIC_CONFIG", "key": key, "value": value}
            assert (await name_server.ask(100, ext)).code == 0
        if "messages_of" in options:
            await self._send_before(broker, str(options["messages_of"]))
        if "online" in options:
            await self._join_before(broker, options["online"])
        broker.close()
        name_server.close()

    async def _join_before(self, broker: Client, online: dict[str, Any]) -> None:
        """Connect a consumer that was online before the capture began.

        Its connection is the one on which the captured broker called it.
        """
        client = await Client.connect(self._addresses["broker"])
        self._clients[online["connection"]] = client
        self._pairs.our_ports.add(client.port)
        subscriptions = [
            {"topic": topic, "subString": "*", "subVersion": 1, "expressionType": "TAG"}
            for topic in (online["topic"], "%RETRY%" + online["group"])
        ]
        consumer = {
            "groupName": online["group"],
            "consumeType": "CONSUME_PASSIVELY",
            "messageModel": "CLUSTERING",
            "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
            "subscriptionDataSet": subscriptions,
        }
        heartbeat = {"clientID": online["client_id"], "consumerDataSet": [consumer]}
        answer = await client.ask(34, {}, json.dumps(heartbeat).encode())
        assert answer.code == 0, answer
        assert await client.call(40, online["group"], ANSWER_TIMEOUT_S) is not None
        for queue_id, offset in enumerate(online.get("committed", [])):
            ext = {
                "consumerGroup": online["group"],
                "topic": online["topic"],
                "queueId": str(queue_id),
                "commitOffset": str(offset),
            }
            assert (await broker.ask(15, ext)).code == 0

    async def _send_before(self, broker: Client, name: str) -> None:
        """Send the messages that a capture delivers, with the fields of their stored copies."""
        self._pairs.our_ports.add(broker.port)
        stored: dict[int, dict[str, Any]] = {}
        for line in load_scenario(name).lines:
            if not line.from_client and line.frame.body[4:8] == MESSAGE_MAGIC:
                for message in stored_messages(line.frame.body):
                    stored[message["commitLogOffset"]] = message
        for position, message in sorted(stored.items()):
            properties = "".join(
                f"{key}\x01{value}\x02"
                for key, value in message["properties"].items()
                if key not in ADDED_BY_BROKER
            )
            ext = {
                "a": "ADM_PG",
                "b": message["topic"],
                "c": "TBW102",
                "d": "4",
                "e": str(message["queueId"]),
                "f": str(message["sysFlag"]),
                "g": str(message["bornTimestamp"]),
                "h": str(message["flag"]),
                "i": properties,
            }
            answer = await broker.ask(310, ext, message["body"])
            assert answer.code == 0, answer
            ours = split_offset_id(answer.ext["msgId"])[1]
            assert self._pairs.same_physical(str(position), str(ours))

    @staticmethod
    async def _wait_for_route(name_server: Client, topic: str) -> None:
        deadline = time.monotonic() + 30
        while (await name_server.ask(105, {"topic": topic})).code != 0:
            assert time.monotonic() < deadline, f"no route to {topic} 30 s after it was made"
            await asyncio.sleep(0.02)

    def _topics_found(self) -> dict[str, tuple[int, int, int]]:
        """Return the topics that have a route before the client creates them."""
        found: dict[str, tuple[int, int, int]] = {}
        made: set[str] = set()
        for line in self._scenario.lines:
            ext = line.frame.ext
            if line.frame.code == 34 and line.is_request:
                for group in json.loads(line.frame.body).get("consumerDataSet") or []:
                    made.add("%RETRY%" + group["groupName"])
            elif line.frame.code in {10, 17, 310, 320} and line.is_request:
                made.add(ext.get("b") or ext.get("topic") or "")
            elif line.request is not None and line.code == 105 and line.frame.code == 0:
                topic = line.request.frame.ext["topic"]
                if topic not in made | BUILT_IN and not topic.endswith("_REPLY_TOPIC"):
                    found.setdefault(topic, _queues(line.frame))
                made.add(topic)
            elif line.request is not None and line.code == 105:
                made.add(line.request.frame.ext.get("topic", ""))
        return found

    # -- the lines -----------------------------------------------------------------------------

    async def play(self) -> None:
        """Play every line in order, then collect the frames that nothing matched."""
        for line in self._scenario.lines:
            self._clock.advance(line.at_ms)
            if line.number in self._skipped:
                pass
            elif line.from_client and line.is_request:
                await self._request(line)
            elif line.from_client:
                await self._answer_call(line)
            elif line.is_request:
                await self._called(line)
            else:
                await self._answered(line)
            if self._last_line[line.connection] == line.number:
                await self._leave(line.connection)
        for connection in list(self._clients):
            await self._leave(connection)

    async def _client(self, line: Line) -> Client:
        client = self._clients.get(line.connection)
        if client is None:
            client = await Client.connect(self._addresses[line.peer])
            self._clients[line.connection] = client
            self._pairs.our_ports.add(client.port)
        return client

    async def _request(self, line: Line) -> None:
        client = await self._client(line)
        await self._wait_for_delays(line)
        await self._restore_heartbeat(line, client)
        if line.answer is not None and place_of_send(line.frame)[1] < 0:
            self._chance.next_choice = int(line.answer.frame.ext.get("queueId", "0"))
        if line.code == QUERY and line.answer is not None:
            await self._wait_indexed(line, client)
        client.send(self._bytes_of(line))
        self.counts.sent += 1
        self._note_delay(line)
        if self._must_wait(line):
            await client.answer(line.frame.opaque, ANSWER_TIMEOUT_S)
        else:
            await client.barrier()

    async def _wait_indexed(self, line: Line, client: Client) -> None:
        """Query until the index, which follows the log, has as many messages as in the capture."""
        assert line.answer is not None
        due = len(stored_messages(line.answer.frame.body))
        deadline = time.monotonic() + 30
        while time.monotonic() < deadline:
            ours = await client.ask(QUERY, rewrite(line, self._pairs))
            if len(stored_messages(ours.body)) >= due:
                break
            await asyncio.sleep(0.02)

    async def _restore_heartbeat(self, line: Line, client: Client) -> None:
        """Send a heartbeat that the capture does not hold; it keeps the first two of equal ones.

        They differ only in the version of their subscriptions, which a later pull contains.
        """
        if line.frame.code == 34:
            body = json.loads(line.frame.body)
            self._heartbeats[line.connection] = body
            for group, subscription in _subscriptions(body):
                place = group, subscription["topic"]
                version = max(self._versions.get(place, 0), int(subscription["subVersion"]))
                self._versions[place] = version
        body = self._heartbeats.get(line.connection)
        if line.frame.code != 11 or body is None:
            return
        ext = line.frame.ext
        place = ext.get("consumerGroup", ""), ext.get("topic", "")
        version = int(ext.get("subVersion", "0"))
        refused = line.answer is not None and line.answer.frame.code == 25
        if refused or version <= self._versions.get(place, version):
            return
        if not self._permit(34, "request.restored", line.number):
            return
        self._versions[place] = version
        for group, subscription in _subscriptions(body):
            if (group, subscription["topic"]) == place:
                subscription["subVersion"] = version
        answer = await client.ask(34, {}, json.dumps(body).encode())
        assert answer.code == 0, answer

    def _bytes_of(self, line: Line) -> bytes:
        ext = rewrite(line, self._pairs)
        hold_ms = self._other_hold_ms(line)
        if hold_ms and self._permit(line.code, "request.suspendTimeoutMillis", line.number):
            ext["suspendTimeoutMillis"] = str(hold_ms)
        is_moment = line.code == RESET and int(ext.get("timestamp", "0")) > 0
        if is_moment and self._permit(line.code, "request.timestamp", line.number):
            ext["timestamp"] = str(self._clock.now_ms() + AFTERWARDS_MS)
        if ext == line.frame.ext:
            return line.raw
        frame = Frame(**{**vars(line.frame), "ext": ext})
        return encode_frame(frame)

    def _other_hold_ms(self, line: Line) -> int:
        """Return how long our broker holds a pull; 0 means as long as in the capture."""
        if line.code not in PULLS or not int(line.frame.ext.get("sysFlag", "0")) & SUSPEND:
            return 0
        deadline_ms = line.at_ms + int(line.frame.ext["suspendTimeoutMillis"])
        if line.answer is None:  # Java looks every 5 s, and the capture ended before it looked
            is_due = self._ends_ms[line.connection] > deadline_ms - LONG_HOLD_MARGIN_MS
            return LONG_HOLD_MS if is_due else 0
        timed_out = line.answer.frame.code == 19 and line.answer.at_ms >= deadline_ms
        return SHORT_HOLD_MS if timed_out else 0

    def _must_wait(self, line: Line) -> bool:
        """Return whether the next line waits for this answer; a held pull counts once it is due."""
        if line.frame.is_oneway or line.answer is None:
            return False
        if line.code in PULLS and int(line.frame.ext.get("sysFlag", "0")) & SUSPEND:
            return False
        lines = self._scenario.lines
        between = lines[lines.index(line) : lines.index(line.answer)]
        return not any(other.is_request and not other.from_client for other in between[1:])

    def _note_delay(self, line: Line) -> None:
        """Note when a delayed message of this request is due, in our time and the capture's."""
        level = 0
        if line.code == 36:
            level = int(line.frame.ext.get("delayLevel", "0")) or 3
        elif line.code in {10, 310}:
            level = int(properties_of(line.frame).get("DELAY", "0"))
        if 0 < level <= len(LEVELS_MS):
            delay = LEVELS_MS[level - 1]
            due = time.monotonic() + delay / 1000 + DELAY_SLACK_S
            self._delays.append((line.at_ms + delay, due))

    async def _wait_for_delays(self, line: Line) -> None:
        """Wait for each delay that has ended at this line of the capture."""
        due = [real for captured, real in self._delays if captured <= line.at_ms]
        self._delays = [pair for pair in self._delays if pair[0] > line.at_ms]
        if due:
            await asyncio.sleep(max(0.0, max(due) - time.monotonic()))

    async def _answered(self, line: Line) -> None:
        client = await self._client(line)
        ours = await client.answer(line.frame.opaque, ANSWER_TIMEOUT_S)
        self._judge(line, ours)

    async def _called(self, line: Line) -> None:
        client = await self._client(line)
        group = line.frame.ext.get("consumerGroup")
        ours = await client.call(line.frame.code, group, ANSWER_TIMEOUT_S)
        if ours is not None:
            self._calls[line.number] = ours
        self._judge(line, ours)

    async def _answer_call(self, line: Line) -> None:
        assert line.request is not None
        call = self._calls.get(line.request.number)
        if call is None:  # the call itself did not come and was judged
            self.counts.skipped += 1
            return
        client = await self._client(line)
        client.send(encode_frame(Frame(**{**vars(line.frame), "opaque": call.opaque})))
        self.counts.sent += 1
        await client.barrier()

    async def _leave(self, connection: int) -> None:
        """Close the connection after a look at the frames that the capture does not hold."""
        client = self._clients.pop(connection, None)
        if client is None:
            return
        await client.barrier()
        for line in self._scenario.lines:
            silent = line.connection == connection and line.from_client and line.is_request
            if silent and line.answer is None and client.has_answer(line.frame.opaque):
                self._extra(line.code, line.number, f"line {line.number}: an answer")
        for call in client.calls:
            self._extra(call.code, 0, f"connection {connection}: a call {call.ext}")
        client.close()
        await asyncio.sleep(0.02)

    def _extra(self, code: int, number: int, what: str) -> None:
        if self._permit(code, "extra", number):
            self.counts.extra += 1
        else:
            self._unlisted(f"{what} of {code}, and the capture has none")

    # -- judging -------------------------------------------------------------------------------

    def _judge(self, line: Line, ours: Frame | None) -> None:
        name, code, number = self._scenario.name, line.code, line.number
        if ours is None:
            theirs = (line.frame.code, line.frame.remark or line.frame.ext)
            differences = [Difference("frame", theirs, "nothing")]
        else:
            remark = line.frame.is_response and self._table.compares_remark(name, code, number)
            differences = compare(line, ours, self._pairs, with_remark=remark)
        is_deviating = False
        for difference in differences:
            if not self._permit(code, difference.field, number):
                self._unlisted(f"line {number} code {code}: {difference}")
            elif difference.field == "frame":
                is_deviating = True
            else:
                self.counts.ignored_fields += 1
        if is_deviating:
            self.counts.deviating += 1
        else:
            self.counts.compared += 1

    def _unlisted(self, text: str) -> None:
        self.counts.unlisted.append(f"{self._scenario.name}: {text}")


def _subscriptions(heartbeat: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each group with each of its subscriptions."""
    for consumer in heartbeat.get("consumerDataSet") or []:
        for subscription in consumer["subscriptionDataSet"]:
            yield consumer["groupName"], subscription


def _queues(frame: Frame) -> tuple[int, int, int]:
    queue = loads_java(frame.body)["queueDatas"][0]
    return queue["readQueueNums"], queue["writeQueueNums"], queue["perm"]
