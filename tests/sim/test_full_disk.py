"""A disk that fills up under a live broker: writes are refused, reads go on, and it recovers."""

import asyncio

import pytest
from tests.request_fields import pull_fields, send_fields

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.broker import Broker
from cometmq.codec.stored_message import decode_messages
from cometmq.net.channel import Channel
from cometmq.testing.simulation import World, simulate
from cometmq.wire.command.command import RemotingCommand

PORT = 10911


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize("seed", [1, 2])
def test_writes_stop_and_come_back(seed: int, flush: str) -> None:
    """Nothing acknowledged is lost on a full disk, and a restart finds all of it."""

    async def main(world: World) -> None:
        machine, client = world.node("broker", capacity_bytes=700_000), world.node("client")
        config = BrokerConfig(
            scrub_bytes_per_second=0,
            broker_name="broker-a",
            broker_ip1=machine.address,
            listen_port=PORT,
            store_path_root_dir="/store",
            flush_disk_type=flush,  # type: ignore[arg-type]
            mapped_file_size_commit_log=64 * 1024,
            mapped_file_size_consume_queue=20 * 100,
            max_hash_slot_num=100,
            max_index_num=400,
            # Otherwise the oldest files would be given up to make room, as in RocketMQ.
            clean_file_forcibly_enable=False,
        )

        async def start() -> None:
            await Broker(config, machine.environment(), machine.disk).start()

        async def connect() -> Channel:
            env = client.environment()
            return await env.network.connect(
                machine.address, PORT, lambda: Channel(env, machine.address)
            )

        stored: list[bytes] = []

        async def send_until(wanted: set[int], tries: int) -> int:
            for number in range(tries):
                body = b"%d/%d" % (len(stored), number) + bytes(8_000)
                answer = await channel.request(RemotingCommand.request(310, send_fields("T"), body))
                if answer.code == 0:
                    stored.append(body)
                if answer.code in wanted:
                    return answer.code
                await asyncio.sleep(0.5)
            return -1

        async def check_all() -> None:
            found: list[bytes] = []
            while len(found) < len(stored):
                request = RemotingCommand.request(11, pull_fields("T", len(found)))
                answer = await channel.request(request)
                assert answer.code == 0, f"{answer.code} {answer.remark}"
                found.extend(bytes(message.body) for message in decode_messages(answer.body))
            assert found == stored

        await machine.run(start)
        channel = await client.run(connect)
        # 14: the broker knows that its disk is full; 1 would be an accident.
        assert await client.run(lambda: send_until({14}, 200)) == 14
        assert len(stored) > 20
        await client.run(check_all)
        machine.disk.capacity_bytes *= 4
        assert await client.run(lambda: send_until({0}, 100)) == 0
        await client.run(check_all)
        machine.crash(power_cut=False)
        machine.restart()
        await machine.run(start)
        channel = await client.run(connect)
        await client.run(check_all)

    assert simulate(seed, main).value is None
