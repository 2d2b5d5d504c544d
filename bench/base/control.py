"""The requests of a load outside its timed part: topics, a group, routes, the ends of queues.

They are ordinary commands over `net.Channel`; none is sent while the clock runs.
"""

from __future__ import annotations

import asyncio
import json
import os
from typing import TYPE_CHECKING, Final

from cometmq.errors import CometError, RemoteError, remote_error
from cometmq.net.channel import ChannelPool
from cometmq.net.env import Environment
from cometmq.wire.body.ha import decode_ha_status
from cometmq.wire.body.route import decode_kv_table
from cometmq.wire.command.command import RemotingCommand

if TYPE_CHECKING:
    from bench.base.frames import Targets  # brings numpy, which --help does without

__all__ = [
    "create_topics",
    "join_group",
    "log_end",
    "max_offset",
    "slave_count",
    "wait_route",
    "wait_until_served",
]

TIMEOUT_MS: Final = 10_000
POLL_S: Final = 0.002
CREATES_IN_FLIGHT: Final = 64
ROUTE_S_MAX: Final = 30.0
UPDATE_AND_CREATE_TOPIC, GET_MAX_OFFSET, HEART_BEAT, GET_ROUTE = 17, 30, 34, 105
GET_RUNTIME_INFO, GET_HA_STATUS = 28, 907
SUCCESS, TOPIC_NOT_EXIST = 0, 17


async def _ask(pool: ChannelPool, address: str, command: RemotingCommand) -> RemotingCommand:
    channel = await pool.get(address)
    answer = await channel.request(command, TIMEOUT_MS)
    if answer.code != SUCCESS:
        raise remote_error(answer.code, answer.remark or "")
    return answer


async def create_topics(env: Environment, address: str, targets: Targets) -> None:
    """Create every topic of a run on the broker for reading and writing."""
    pool = ChannelPool(env)
    try:
        for begin in range(0, targets.topic_count, CREATES_IN_FLIGHT):
            end = min(begin + CREATES_IN_FLIGHT, targets.topic_count)
            commands = [
                RemotingCommand.request(
                    UPDATE_AND_CREATE_TOPIC,
                    {
                        "topic": targets.topic(index),
                        "defaultTopic": "TBW102",
                        "readQueueNums": str(targets.queue_count),
                        "writeQueueNums": str(targets.queue_count),
                        "perm": "6",
                        "topicFilterType": "SINGLE_TAG",
                        "topicSysFlag": "0",
                        "order": "false",
                    },
                )
                for index in range(begin, end)
            ]
            await asyncio.gather(*(_ask(pool, address, command) for command in commands))
    finally:
        await pool.close()


async def wait_route(env: Environment, name_server: str, topic: str) -> None:
    """Wait until a name server has the topic's route; a Java broker registers a new topic late.

    Raises:
        RemoteError: the route is still missing after `ROUTE_S_MAX`.
    """
    pool = ChannelPool(env)
    deadline = env.clock.monotonic() + ROUTE_S_MAX
    try:
        while True:
            try:
                await _ask(pool, name_server, RemotingCommand.request(GET_ROUTE, {"topic": topic}))
            except RemoteError as error:
                if error.code != TOPIC_NOT_EXIST or env.clock.monotonic() >= deadline:
                    raise
                await asyncio.sleep(0.05)
            else:
                return
    finally:
        await pool.close()


async def join_group(env: Environment, address: str, group: str, targets: Targets) -> None:
    """Register a consumer group at the broker, as a client's first heartbeat does."""
    subscription = {
        "classFilterMode": False,
        "codeSet": [],
        "expressionType": "TAG",
        "subString": "*",
        "subVersion": env.clock.now_ms(),
        "tagsSet": [],
        "topic": targets.topic(0),
    }
    consumer = {
        "consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET",
        "consumeType": "CONSUME_PASSIVELY",
        "groupName": group,
        "messageModel": "CLUSTERING",
        "subscriptionDataSet": [subscription],
        "unitMode": False,
    }
    body = {
        "clientID": f"127.0.0.1@{os.getpid()}#bench",
        "consumerDataSet": [consumer],
        "producerDataSet": [],
    }
    pool = ChannelPool(env)
    try:
        command = RemotingCommand.request(
            HEART_BEAT, {}, json.dumps(body, separators=(",", ":")).encode()
        )
        await _ask(pool, address, command)
    finally:
        await pool.close()


async def max_offset(env: Environment, address: str, topic: str, queue_id: int) -> int:
    """The end of one queue."""
    pool = ChannelPool(env)
    try:
        ext = {"topic": topic, "queueId": str(queue_id)}
        answer = await _ask(pool, address, RemotingCommand.request(GET_MAX_OFFSET, ext))
        return int(answer.ext_fields["offset"])
    finally:
        await pool.close()


async def log_end(env: Environment, address: str) -> int:
    """Physical offset at which a broker's log ends."""
    pool = ChannelPool(env)
    try:
        answer = await _ask(pool, address, RemotingCommand.request(GET_RUNTIME_INFO))
        return int(decode_kv_table(answer.body)["commitLogMaxOffset"])
    finally:
        await pool.close()


async def slave_count(env: Environment, address: str) -> int:
    """How many slaves have all of a master's log."""
    pool = ChannelPool(env)
    try:
        answer = await _ask(pool, address, RemotingCommand.request(GET_HA_STATUS))
        status = decode_ha_status(answer.body)
        return sum(slave.behind_bytes <= 0 for slave in status.connections)
    finally:
        await pool.close()


async def wait_until_served(env: Environment, address: str, timeout_s: float) -> float | None:
    """Poll until a request is answered; return the clock's seconds, or None after `timeout_s`."""
    deadline = env.clock.monotonic() + timeout_s
    while env.clock.monotonic() < deadline:
        pool = ChannelPool(env)
        try:
            channel = await pool.get(address, 500)
            command = RemotingCommand.request(GET_MAX_OFFSET, {"topic": "TBW102", "queueId": "0"})
            await channel.request(command, 1000)
            return env.clock.monotonic()
        except CometError:
            await asyncio.sleep(POLL_S)
        finally:
            await pool.close()
    return None
