"""What one connection may take: floods wait, slow readers are cut, and each limit is counted."""

import asyncio
import socket
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.net.channel import Channel
from cometmq.net.env import system_environment
from cometmq.net.limits import LIMIT_NAMES, LimitSettings, count_frames
from cometmq.net.server import Handler, RemotingServer, ServerConnection
from cometmq.testing.simulation import Node, World, simulate
from cometmq.wire.command.command import BINARY, JSON, RemotingCommand, encode_command

PORT = 10911


@given(
    st.lists(
        st.tuples(
            st.sampled_from([JSON, BINARY]), st.sampled_from([0, 1, 2]), st.binary(max_size=9)
        ),
        max_size=6,
    ),
    st.integers(0, 60),
)
def test_frames_are_counted_as_they_are_read(
    frames: list[tuple[int, int, bytes]], missing: int
) -> None:
    """In both header encodings; an unfinished frame at the end counts when it is whole."""
    commands = []
    for serialize_type, flag, body in frames:
        command = RemotingCommand.request(10, {"flag": "9", "a": "b"}, body)
        command.serialize_type, command.flag, command.opaque = serialize_type, flag, 7
        commands.append(command)
    encoded = [encode_command(command) for command in commands]
    data = b"".join(encoded)
    assert count_frames(data) == (len(frames), sum(flag == 0 for _, flag, _ in frames))
    cut = data[: max(0, len(data) - missing)]
    whole = 0
    while whole < len(encoded) and len(b"".join(encoded[: whole + 1])) <= len(cut):
        whole += 1
    assert count_frames(cut)[0] == whole


async def serving(node: Node, handlers: dict[int, Handler], **limits: Any) -> RemotingServer:
    """A server of this machine."""

    async def start() -> RemotingServer:
        settings = LimitSettings(**limits)
        server = RemotingServer(node.environment(), handlers, limits=settings)
        await server.listen("", PORT)
        return server

    return await node.run(start)


async def dialled(node: Node, server: Node) -> Channel:
    """A client's connection."""
    env = node.environment()
    address = f"{server.address}:{PORT}"

    async def dial() -> Channel:
        return await env.network.connect(server.address, PORT, lambda: Channel(env, address))

    return await node.run(dial)


def answering(request: RemotingCommand, _: ServerConnection, __: int) -> RemotingCommand:
    """Answer at once."""
    return request.answer(0)


def naming(request: RemotingCommand, connection: ServerConnection, _: int) -> RemotingCommand:
    """A heartbeat: the connection belongs to this client."""
    connection.client_id = request.ext_fields["client"]
    return request.answer(0)


def test_a_flood_waits_and_nobody_else_does() -> None:
    """100 requests at once take the nine seconds that 10 a second allow; others take their own."""

    async def main(world: World) -> tuple[float, float, int]:
        node = world.node("server")
        server = await serving(node, {1: answering}, requests_per_second_max=10)
        flooding = await dialled(world.node("flooder"), node)
        calm = await dialled(world.node("calm"), node)
        begun = world.loop.time()
        flood = [flooding.request(RemotingCommand.request(1), 60_000) for _ in range(100)]
        for _ in range(5):
            await calm.request(RemotingCommand.request(1), 60_000)
        calm_s = world.loop.time() - begun
        for asked in flood:
            await asked
        # What a read has brought is answered; the next request waits for the debt.
        await flooding.request(RemotingCommand.request(1), 60_000)
        return calm_s, world.loop.time() - begun, server.limiter.counts["requests_per_second"]

    calm_s, flood_s, count = simulate(1, main).value
    assert calm_s < 1
    assert flood_s >= 9
    assert count >= 1


def test_all_connections_of_a_client_share_its_rate() -> None:
    """Once a heartbeat has named it; another client is not concerned."""

    async def main(world: World) -> tuple[float, float]:
        node = world.node("server")
        handlers: dict[int, Handler] = {1: answering, 34: naming}
        await serving(node, handlers, requests_per_second_per_client_max=10)
        machine = world.node("client")
        channels = [await dialled(machine, node) for _ in range(3)]
        for channel, client in zip(channels, ("a", "a", "b"), strict=True):
            await channel.request(RemotingCommand.request(34, {"client": client}))
        begun = world.loop.time()
        for _ in range(20):
            for channel in channels[:2]:
                await channel.request(RemotingCommand.request(1), 60_000)
        both_s = world.loop.time() - begun
        begun = world.loop.time()
        for _ in range(5):
            await channels[2].request(RemotingCommand.request(1), 60_000)
        return both_s, world.loop.time() - begun

    both_s, other_s = simulate(2, main).value
    assert both_s >= 2.5
    assert other_s < 1


@pytest.mark.parametrize("name", ["frames_in_flight", "frames_in_flight_per_client"])
def test_requests_without_an_answer_are_bounded(name: str) -> None:
    """Further ones wait in the network until an answer leaves; every one is served in the end."""

    async def main(world: World) -> tuple[int, int, int]:
        node = world.node("server")
        held: list[tuple[RemotingCommand, ServerConnection]] = []

        def holding(request: RemotingCommand, connection: ServerConnection, _: int) -> None:
            held.append((request, connection))

        handlers: dict[int, Handler] = {1: holding, 34: naming}
        server = await serving(node, handlers, **{f"{name}_max": 5})
        channel = await dialled(world.node("client"), node)
        await channel.request(RemotingCommand.request(34, {"client": "a"}))
        asked = []
        for _ in range(20):
            asked.append(channel.request(RemotingCommand.request(1), 600_000))
            await asyncio.sleep(0.1)  # virtual: each request is a read of its own
        await asyncio.sleep(10)
        most = len(held)
        served = 0
        while served < len(asked):
            request, connection = held[served]
            connection.send(encode_command(request.answer(0)))
            await asked[served]
            served += 1
            await asyncio.sleep(1)
        return most, served, server.limiter.counts[name]

    most, served, count = simulate(3, main).value
    assert most == 6
    assert served == 20
    assert count >= 1


def test_an_address_has_so_many_connections() -> None:
    """One more is closed; after one has left there is room."""

    async def main(world: World) -> list[bool]:
        node, machine = world.node("server"), world.node("client")
        server = await serving(node, {1: answering}, connections_per_address_max=2)
        channels = [await dialled(machine, node) for _ in range(3)]
        await asyncio.sleep(1)
        states = [channel.is_closed for channel in channels]
        channels[0].close()
        await asyncio.sleep(1)
        another = await dialled(machine, node)
        elsewhere = await dialled(world.node("other"), node)
        await asyncio.sleep(1)
        assert server.limiter.counts == {"connections_per_address": 1}
        assert len(server.connections) == 3
        return [*states, another.is_closed, elsewhere.is_closed]

    assert simulate(4, main).value == [False, False, True, False, False]


def test_a_peer_that_reads_nothing_is_cut_at_its_bytes() -> None:
    """Over a real socket, whose buffers take some of them."""

    async def story() -> None:
        is_open, is_lost = asyncio.Event(), asyncio.Event()
        connections: list[ServerConnection] = []

        def opened(connection: ServerConnection) -> None:
            connections.append(connection)
            is_open.set()

        server = RemotingServer(
            system_environment(),
            {},
            on_open=opened,
            on_close=lambda _: is_lost.set(),
            limits=LimitSettings(unsent_bytes_max=4 << 20),
        )
        port = await server.listen("127.0.0.1", 0)
        with socket.create_connection(("127.0.0.1", port), 30):
            await asyncio.wait_for(is_open.wait(), 30)
            piece = bytes(1 << 20)
            for _ in range(256):
                connections[0].send(piece)
                await asyncio.sleep(0)
            await asyncio.wait_for(is_lost.wait(), 30)
        assert server.limiter.counts == {"unsent_bytes": 1}
        await server.stop()

    asyncio.run(story())


class _Wire(asyncio.Transport):
    """Takes everything, delivers nothing."""

    was_aborted = False

    def write(self, data: Any) -> None:
        pass

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def get_write_buffer_size(self) -> int:
        return 3 << 20

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass

    def abort(self) -> None:
        self.was_aborted = True


def test_a_slow_reader_is_cut_in_time_and_a_client_at_its_sum() -> None:
    """Each under its own name."""

    async def story() -> None:
        settings = LimitSettings(slow_reader_timeout=50, unsent_bytes_per_client_max=5 << 20)
        server = RemotingServer(system_environment(), {}, limits=settings)
        pairs = []
        for _ in range(2):
            connection, wire = ServerConnection(server), _Wire()
            connection.connection_made(wire)
            connection.client_id = "a"
            pairs.append((connection, wire))
        (slow, wire), (second, second_wire) = pairs
        slow.pause_writing()
        now_ms = slow.now_ms()
        slow.sweep(now_ms + 40)
        states = [wire.was_aborted]
        slow.sweep(now_ms + 100_000)
        states.append(wire.was_aborted)
        assert states == [False, True]
        second.pause_writing()
        second.send(b"one more")
        await asyncio.sleep(0)
        assert second_wire.was_aborted
        assert server.limiter.counts == {"slow_reader": 1, "unsent_bytes_per_client": 1}
        assert set(server.limiter.counts) <= set(LIMIT_NAMES)

    asyncio.run(story())
