"""The simulated network: TCP's promises are kept, everything else is up to the seed."""

import asyncio

import pytest

from cometmq.errors import ConnectFailed
from cometmq.testing.network import NetworkFaults, SimTransport
from cometmq.testing.simulation import World, simulate


class Recorder(asyncio.Protocol):
    """Keeps what it sees."""

    def __init__(self) -> None:
        self.data = bytearray()
        self.reads = 0
        self.events: list[str] = []
        self.transport: SimTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, SimTransport)
        self.transport = transport
        self.events.append("made")

    def data_received(self, data: bytes) -> None:
        self.data += data
        self.reads += 1

    def eof_received(self) -> bool:
        self.events.append("eof")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self.events.append(f"lost {type(exc).__name__}")

    def pause_writing(self) -> None:
        self.events.append("pause")

    def resume_writing(self) -> None:
        self.events.append("resume")


async def pair(world: World) -> tuple[Recorder, Recorder]:
    """A connected client and server protocol."""
    server = Recorder()
    await world.network.host("10.0.0.9").listen("0.0.0.0", 9876, lambda: server)
    client = await world.network.host("10.0.0.8").connect("10.0.0.9", 9876, Recorder)
    return client, server


@pytest.mark.parametrize("seed", range(5))
def test_bytes_arrive_once_and_in_order(seed: int) -> None:
    """However they are split and delayed."""
    sent = [bytes([number % 251]) * (number * 37 % 5000) for number in range(200)]

    async def main(world: World) -> tuple[bytes, int]:
        client, server = await pair(world)
        assert client.transport is not None
        for chunk in sent:
            client.transport.write(chunk)
            await asyncio.sleep(0.0003)
        await asyncio.sleep(1)
        return bytes(server.data), server.reads

    data, reads = simulate(seed, main, faults=NetworkFaults(split_chance=0.7)).value
    assert data == b"".join(sent)
    assert reads != len(sent)


def test_the_same_seed_gives_the_same_trace() -> None:
    """And another seed another one."""

    async def main(world: World) -> int:
        client, server = await pair(world)
        assert client.transport is not None
        for number in range(50):
            client.transport.write(bytes(100 + number))
            await asyncio.sleep(0.001)
        await asyncio.sleep(1)
        return len(server.data)

    first, second, other = (simulate(seed, main) for seed in (1, 1, 2))
    assert first.trace == second.trace
    assert first.digest == second.digest != other.digest
    assert first.value == second.value == other.value


def test_close_delivers_then_ends_both_sides() -> None:
    """What was written before close arrives; then each side hears of the end."""

    async def main(world: World) -> tuple[Recorder, Recorder]:
        client, server = await pair(world)
        assert client.transport is not None
        client.transport.write(b"x" * 100_000)
        client.transport.close()
        await asyncio.sleep(1)
        return client, server

    client, server = simulate(3, main).value
    assert len(server.data) == 100_000
    assert server.events == ["made", "eof", "lost NoneType"]
    assert client.events == ["made", "pause", "resume", "lost NoneType"]


def test_a_slow_reader_pauses_the_writer() -> None:
    """Nothing passes while the reader is paused; the writer is told, and told again."""

    async def main(world: World) -> tuple[int, list[str], int]:
        client, server = await pair(world)
        assert client.transport is not None
        assert server.transport is not None
        server.transport.pause_reading()
        client.transport.write(b"x" * 100_000)
        await asyncio.sleep(1)
        arrived = len(server.data)
        server.transport.resume_reading()
        await asyncio.sleep(1)
        return arrived, client.events, len(server.data)

    assert simulate(3, main).value == (0, ["made", "pause", "resume"], 100_000)


def test_abort_and_crash_reset_the_other_side() -> None:
    """The other side loses the connection with an error, and unsent bytes with it."""

    async def main(world: World) -> tuple[list[str], list[str]]:
        client, server = await pair(world)
        assert client.transport is not None
        client.transport.abort()
        other = await world.network.host("10.0.0.8").connect("10.0.0.9", 9876, Recorder)
        await asyncio.sleep(1)
        world.network.host("10.0.0.9").crash()
        await asyncio.sleep(1)
        return server.events, other.events

    server_events, other_events = simulate(4, main).value
    assert "lost ConnectionResetError" in server_events
    assert other_events == ["made", "lost ConnectionResetError"]


def test_a_cut_ends_the_connection_somewhere_in_the_stream() -> None:
    """With cuts certain, the first delivery is a reset on both sides."""

    async def main(world: World) -> tuple[bytes, str, str]:
        client, server = await pair(world)
        assert client.transport is not None
        client.transport.write(b"hello")
        await asyncio.sleep(1)
        return bytes(server.data), client.events[-1], server.events[-1]

    outcome = simulate(4, main, faults=NetworkFaults(cut_chance=1.0))
    assert outcome.value == (b"", "lost ConnectionResetError", "lost ConnectionResetError")


def test_a_cut_of_answers_lets_the_request_arrive() -> None:
    """The server has done what was asked, and the client does not know."""

    class Answering(Recorder):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            assert self.transport is not None
            self.transport.write(b"done")

    async def main(world: World) -> tuple[bytes, bytes, str]:
        server = Answering()
        await world.network.host("10.0.0.9").listen("0.0.0.0", 9876, lambda: server)
        client = await world.network.host("10.0.0.8").connect("10.0.0.9", 9876, Recorder)
        assert client.transport is not None
        client.transport.write(b"hello")
        await asyncio.sleep(1)
        return bytes(server.data), bytes(client.data), client.events[-1]

    outcome = simulate(4, main, faults=NetworkFaults(answer_cut_chance=1.0))
    assert outcome.value == (b"hello", b"", "lost ConnectionResetError")


def test_a_machine_that_vanished_resets_nothing_before_it_is_there_again() -> None:
    """And then only the connections on which somebody writes."""

    async def main(world: World) -> list[list[str]]:
        node, there = world.node("there"), Recorder()

        async def listen() -> None:
            await node.environment().network.listen("0.0.0.0", 9876, lambda: there)

        await node.run(listen)
        here = world.network.host("10.0.0.99")
        clients = [await here.connect(node.address, 9876, Recorder) for _ in range(3)]
        writing, _, early = clients
        assert writing.transport is not None
        assert early.transport is not None
        early.transport.write(b"on its way")
        node.crash(power_cut=True, is_silent=True)
        await asyncio.sleep(5)
        writing.transport.write(b"hello")
        with pytest.raises(ConnectFailed, match="within 3000 ms"):
            await here.connect(node.address, 9876, Recorder, 3_000)
        before = [list(client.events) for client in clients]
        node.restart()
        await asyncio.sleep(5)
        return [*before, *[client.events for client in clients]]

    lost = ["made", "lost ConnectionResetError"]
    assert simulate(4, main).value == [["made"]] * 3 + [lost, ["made"], lost]


def test_half_close_lets_the_other_direction_go_on() -> None:
    """A protocol that returns True from eof_received keeps its writing side."""

    class Answering(Recorder):
        def eof_received(self) -> bool:
            assert self.transport is not None
            self.transport.write(b"late answer")
            self.transport.close()
            return True

    async def main(world: World) -> bytes:
        await world.network.host("10.0.0.9").listen("0.0.0.0", 1, Answering)
        client = await world.network.host("10.0.0.8").connect("10.0.0.9", 1, Recorder)
        assert client.transport is not None
        client.transport.write_eof()
        await asyncio.sleep(1)
        return bytes(client.data)

    assert simulate(5, main).value == b"late answer"


def test_a_partition_holds_everything_back_until_it_heals() -> None:
    """Connections stay open, bytes wait, new connections time out."""

    async def main(world: World) -> tuple[int, str, int]:
        client, server = await pair(world)
        assert client.transport is not None
        world.network.part("10.0.0.8", "10.0.0.9")
        client.transport.write(b"abc")
        await asyncio.sleep(10)
        before = len(server.data)
        try:
            await world.network.host("10.0.0.8").connect("10.0.0.9", 9876, Recorder, 500)
        except ConnectFailed as error:
            refused = str(error)
        world.network.heal()
        await asyncio.sleep(1)
        return before, refused, len(server.data)

    before, refused, after = simulate(6, main).value
    assert (before, after) == (0, 3)
    assert refused == "no connection to 10.0.0.9:9876 within 500 ms"


def test_a_partition_may_stop_one_direction_and_heal_alone() -> None:
    """The other direction goes on, and another partition stays."""

    async def main(world: World) -> tuple[bytes, bytes, bytes]:
        client, server = await pair(world)
        assert client.transport is not None
        assert server.transport is not None
        network = world.network
        network.part("10.0.0.8", "10.0.0.9", one_way=True)
        network.part("10.0.0.8", "10.0.0.7")
        client.transport.write(b"request")
        server.transport.write(b"answer")
        await asyncio.sleep(10)
        before = bytes(server.data)
        network.heal("10.0.0.9", "10.0.0.8")
        await asyncio.sleep(1)
        assert network.is_parted("10.0.0.8", "10.0.0.7")
        assert network.is_parted("10.0.0.7", "10.0.0.8")
        return before, bytes(client.data), bytes(server.data)

    assert simulate(6, main).value == (b"", b"answer", b"request")


def test_nobody_listening_refuses() -> None:
    """With the address in the sentence."""

    async def main(world: World) -> None:
        with pytest.raises(ConnectFailed, match=r"10\.0\.0\.7:1: nobody listens"):
            await world.network.host("10.0.0.8").connect("10.0.0.7", 1, Recorder)

    assert simulate(7, main).value is None
