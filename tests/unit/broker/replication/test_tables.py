"""What a slave copies besides the log, and what its consumers leave there."""

from __future__ import annotations

import asyncio
import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.unit.broker.harness import Client, eventually
from tests.unit.broker.replication.pair import connected, copied, replica_set

from cometmq import Admin, Message, Producer, PullConsumer
from cometmq.broker import Broker
from cometmq.cli.main import root
from cometmq.codec.timer import TimerCheckpoint, decode_timer_checkpoint
from cometmq.errors import NoRoute, RemoteError, ResponseCode
from cometmq.model.group import SubscriptionGroupConfig
from cometmq.wire.body.admin import encode_group_config
from cometmq.wire.body.ha import decode_ha_status
from cometmq.wire.command.codes import RequestCode


async def followed(slave: Broker) -> None:
    """Wait until the slave follows, and have it copy the tables now."""
    following = slave.services.following
    assert following is not None
    await eventually(lambda: following.log.master is not None)
    assert following.log.master is not None
    await following.tables.copy(following.log.master)


async def commit(client: Client, consumer_offset: int) -> None:
    """Commit an offset of group g in queue 0 of topic t."""
    fields = {"consumerGroup": "g", "topic": "t", "queueId": "0"}
    answer = await client.call(
        RequestCode.UPDATE_CONSUMER_OFFSET, {**fields, "commitOffset": str(consumer_offset)}
    )
    assert answer.code == ResponseCode.SUCCESS


def committed(broker: Broker) -> int | None:
    """The offset of group g in queue 0 of topic t."""
    return broker.state.offsets.query("g", "t", 0)


def test_slave_has_topics_groups_and_positions(tmp_path: Path) -> None:
    """Made, changed and deleted at the master, they are so at the slave."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master() as master,
            members.slave() as slave,
            connected(master) as client,
        ):
            for body in (b"0", b"1", b"2"):
                await client.send(body)
            await client.send(b"gone", b="u")
            group = encode_group_config(SubscriptionGroupConfig("g", retry_max_times=3))
            await client.call(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, group)
            await commit(client, 2)
            await copied(master, slave)
            await followed(slave)
            assert slave.state.topics.get("t") == master.state.topics.get("t")
            assert slave.state.groups.get("g") == master.state.groups.get("g")
            assert committed(slave) == 2
            await client.call(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "u"})
            await commit(client, 1)
            await client.call(RequestCode.DELETE_SUBSCRIPTIONGROUP, {"groupName": "g"})
            await followed(slave)
            assert slave.state.topics.get("u") is None
            assert slave.services.store.queues("u") == []
            assert slave.state.groups.get("g") is None
            assert committed(slave) == 1

    asyncio.run(main())


def test_offsets_that_consumers_left_at_the_slave_survive_the_masters_return(
    tmp_path: Path,
) -> None:
    """RocketMQ's slave takes the master's old offset again, and messages are delivered twice."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with members.master() as master:
                async with connected(master) as client:
                    await client.send(b"0")
                    await client.send(b"1")
                    # A group's first pull makes the group.
                    await client.pull()
                    await commit(client, 1)
                slave_life = members.slave()
                slave = await slave_life.__aenter__()
                await copied(master, slave)
                await followed(slave)
            try:
                async with connected(slave) as client:
                    assert (await client.pull(queueOffset="1")).code == ResponseCode.SUCCESS
                    await commit(client, 2)
                async with members.master() as master:
                    await followed(slave)
                    assert (committed(slave), committed(master)) == (2, 2)
                    async with connected(master) as client:
                        await commit(client, 0)
                    await followed(slave)
                    assert committed(slave) == 0
            finally:
                await slave_life.__aexit__(None, None, None)

    asyncio.run(main())


def test_timers_go_on_where_the_master_was(tmp_path: Path) -> None:
    """A slave that becomes the master delivers what is not delivered, and nothing again."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with (
                members.master(timerPrecisionMs=100) as master,
                members.slave(timerPrecisionMs=100) as slave,
                connected(master) as client,
            ):
                now_ms = master.env.clock.now_ms()
                soon, later = now_ms + 300, now_ms + 600_000
                await client.send(b"soon", i=f"TIMER_DELIVER_MS\x01{soon}\x02")
                await client.send(b"later", i=f"TIMER_DELIVER_MS\x01{later}\x02")
                store = master.services.store
                await eventually(lambda: store.max_queue_offset("t", 0) == 1)
                await eventually(lambda: master.timers.checkpoint.read_time_ms > soon)
                await eventually(lambda: master.timers.checkpoint.queue_offset == 2)
                await copied(master, slave)
                await followed(slave)
            written = decode_timer_checkpoint(
                (tmp_path / "slave-1" / "config" / "timercheck").read_bytes()
            )
            assert (written.queue_offset, written.master_queue_offset) == (0, 2)
            async with members.slave(
                brokerRole="SYNC_MASTER", brokerId=0, timerPrecisionMs=100
            ) as promoted:
                timers = promoted.timers
                await eventually(lambda: timers.intake.message_count() == 0)
                assert timers.pending_count() == 1
                assert promoted.services.store.max_queue_offset("t", 0) == 1
                assert timers.checkpoint != TimerCheckpoint()

    asyncio.run(main())


def test_pulls_suggest_where_to_read(tmp_path: Path) -> None:
    """A slave sends consumers back to a master that is there, and keeps them when it is away;
    a pull that is ahead of the slave waits there, since no offset has moved."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with members.master(slaveReadEnable=True) as master:
                async with connected(master) as client:
                    await client.send(b"0")
                    assert suggestion(await client.pull()) == "0"
                slave_life = members.slave()
                slave = await slave_life.__aenter__()
                await copied(master, slave)
                await followed(slave)
                async with connected(slave) as client:
                    assert suggestion(await client.pull()) == "0"
            try:
                await eventually(lambda: not slave.state.follows_master())
                async with connected(slave) as client:
                    assert suggestion(await client.pull()) == "1"
                    ahead = await client.pull(queueOffset="9", suspendTimeoutMillis="1")
                    assert ahead.code == ResponseCode.PULL_NOT_FOUND
                    assert ahead.ext_fields["nextBeginOffset"] == "9"
            finally:
                await slave_life.__aexit__(None, None, None)

    asyncio.run(main())


def test_client_reads_from_the_slave_while_the_master_is_away(tmp_path: Path) -> None:
    """A consumer that starts after the master's end finds the slave, reads and commits there."""

    async def main() -> None:
        async with replica_set(tmp_path) as members:
            async with members.master() as master:
                async with Producer("p", name_server=members.name_server) as producer:
                    for number in range(5):
                        await producer.send(Message("t", b"%d" % number))
                slave_life = members.slave()
                slave = await slave_life.__aenter__()
                await copied(master, slave)
                await followed(slave)
            try:
                bodies: set[bytes] = set()
                async with PullConsumer(
                    "g", {"t": "*"}, name_server=members.name_server, consume_from="first"
                ) as consumer:
                    async with asyncio.timeout(30):
                        while len(bodies) < 5:
                            bodies |= {message.body for message in await consumer.poll()}
                stored = [slave.state.offsets.query("g", "t", queue_id) for queue_id in range(4)]
                assert sum(offset or 0 for offset in stored) == 5
            finally:
                await slave_life.__aexit__(None, None, None)

    asyncio.run(main())


def test_command_shows_who_follows_and_how_far(tmp_path: Path) -> None:
    """`cometmq replica status` has a row for each broker; another name is refused."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master() as master,
            members.slave() as slave,
        ):
            async with connected(master) as client:
                await client.send(b"x")
            await copied(master, slave)
            arguments = ["replica", "status", "-n", members.name_server, "--json"]
            invoke = partial(CliRunner().invoke, root)
            result = await asyncio.to_thread(invoke, arguments)
            assert result.exit_code == 0, result.output
            end = master.services.store.max_physical_offset
            rows = [
                (row["id"], row["state"], row["log_end"], row["behind_bytes"])
                for row in (json.loads(result.output))
            ]
            assert rows == [(0, "master", end, 0), (1, "following", end, 0)]
            refused = await asyncio.to_thread(invoke, [*arguments, "nobody"])
            assert refused.exit_code != 0

    asyncio.run(main())


def test_writes_end_when_a_slave_follows_and_are_allowed_again(tmp_path: Path) -> None:
    """`replica end-writes` changes nothing without a slave; with one the master refuses sends, and
    the slave has its whole log."""

    async def main() -> None:
        async with replica_set(tmp_path) as members, members.master() as master:
            invoke = partial(CliRunner().invoke, root)
            server = ["-n", members.name_server]
            end_writes = ["replica", "end-writes", "broker-a", *server, "--json"]
            async with connected(master) as client:
                await client.send(b"x")
                refused = await asyncio.to_thread(invoke, end_writes)
                assert refused.exit_code != 0
                assert "id 0 is master" in str(refused.exception)
                await client.send(b"y")
                async with members.slave():
                    status = ["replica", "status", *server, "--json"]

                    async def follows() -> bool:
                        rows = json.loads((await asyncio.to_thread(invoke, status)).output)
                        return "following" in {row["state"] for row in rows}

                    async with asyncio.timeout(30):
                        while not await follows():
                            pass
                    result = await asyncio.to_thread(invoke, end_writes)
                    assert result.exit_code == 0, result.output
                    end = master.services.store.max_physical_offset
                    assert [
                        (row["state"], row["log_end"]) for row in json.loads(result.output)
                    ] == [
                        ("master", end),
                        ("following", end),
                    ]
                    assert (await client.send(b"z")).code == ResponseCode.SYSTEM_ERROR
                    allow_writes = ["replica", "allow-writes", "broker-a", *server]
                    result = await asyncio.to_thread(invoke, allow_writes)
                    assert result.exit_code == 0, result.output
                    assert (await client.send(b"z")).code == ResponseCode.SUCCESS

    asyncio.run(main())


@pytest.mark.parametrize("message_group", [None, "g"])
def test_producer_sends_again_when_its_topic_has_the_write_permission_again(
    tmp_path: Path, message_group: str | None
) -> None:
    """A producer whose only route had no queue to write to fetches it again for the next send."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master() as master,
            Admin(name_server=members.name_server) as admin,
            Producer("p", name_server=members.name_server) as producer,
        ):
            await admin.create_topic("t")
            async with connected(master) as client:
                await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=b"brokerPermission=4")
            await wait_for_permission(admin, 4)
            message = Message("t", b"x", message_group=message_group)
            with pytest.raises(NoRoute, match="lack the write permission"):
                await producer.send(message)
            await admin.allow_writes("broker-a")
            await wait_for_permission(admin, 6)
            await producer.send(message)

    asyncio.run(main())


async def wait_for_permission(admin: Admin, permission: int) -> None:
    """Wait until the name server shows topic t with a permission."""
    async with asyncio.timeout(30):
        while (await admin.topic_route("t")).queue_datas[0].perm != permission:
            pass


def suggestion(answer: object) -> str:
    """The broker id that a pull answer suggests."""
    ext: dict[str, str] = answer.ext_fields  # type: ignore[attr-defined]
    return ext["suggestWhichBrokerId"]


def test_ha_status_of_both_ends(tmp_path: Path) -> None:
    """907 names each slave with its position, and a slave its master."""

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master() as master,
            members.slave() as slave,
        ):
            async with connected(master) as client:
                await client.send(b"x")
                await copied(master, slave)
                replicas = master.replicas
                assert replicas is not None
                end = master.services.store.max_physical_offset
                await eventually(lambda: replicas.acknowledged(1) == end)
                answer = await client.call(RequestCode.GET_BROKER_HA_STATUS)
                status = decode_ha_status(answer.body)
                assert (status.is_master, status.in_sync_slave_count) == (True, 1)
                assert status.connections[0].acknowledged == status.max_offset == end
                modes = await client.call(RequestCode.GET_ALL_MESSAGE_REQUEST_MODE)
                assert modes.body == b'{"messageRequestModeMap":{}}'
            async with connected(slave) as client:
                answer = await client.call(RequestCode.GET_BROKER_HA_STATUS)
                status = decode_ha_status(answer.body)
                assert (status.is_master, status.client.is_active) == (False, True)
                assert status.client.max_offset == status.client.master_flush_offset == end

    asyncio.run(main())


def test_slave_of_a_master_that_checks_signatures(tmp_path: Path) -> None:
    """It signs its own requests with the inner account; without one it copies no tables."""
    inner = json.dumps({"accessKey": "inner", "secretKey": "secret-of-inner"})
    guarded: dict[str, Any] = {"authenticationEnabled": True, "authorizationEnabled": True}
    credentials: dict[str, Any] = {"innerClientAuthenticationCredentials": inner}

    async def main() -> None:
        async with (
            replica_set(tmp_path) as members,
            members.master(**guarded, **credentials) as master,
            Admin(
                name_server=members.name_server, access_key="inner", secret_key="secret-of-inner"
            ) as admin,
        ):
            await admin.create_topic("t", queue_count=1)
            async with Producer(
                "p",
                name_server=members.name_server,
                access_key="inner",
                secret_key="secret-of-inner",
            ) as producer:
                await producer.send(Message("t", b"kept"))
            async with members.slave(**guarded, **credentials) as slave:
                await copied(master, slave)
                await followed(slave)
                assert "t" in slave.state.topics
            async with members.slave(member_id=2) as stranger:
                following = stranger.services.following
                assert following is not None
                with pytest.raises(RemoteError, match="username cannot be null"):
                    await following.tables.copy(master.address)
                assert "t" not in stranger.state.topics

    asyncio.run(main())
