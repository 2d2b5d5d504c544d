"""Requests of a server to its clients: answers, time-outs, and the end of the connection."""

import asyncio
from typing import Any

import pytest

from cometmq.net.env import system_environment
from cometmq.net.server import RemotingServer, ServerConnection
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.connection import IDLE_MS_MAX
from cometmq.wire.frame.framing import FrameReader


class Wire(asyncio.Transport):
    """Keeps what was written."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.was_aborted = False

    def write(self, data: Any) -> None:
        self.written += bytes(data)

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        pass

    def abort(self) -> None:
        self.was_aborted = True


def connected() -> tuple[ServerConnection, Wire]:
    connection = ServerConnection(RemotingServer(system_environment(), {}))
    wire = Wire()
    connection.connection_made(wire)
    return connection, wire


def test_calls_are_answered_or_expire_each_at_its_own_deadline() -> None:
    """One timer serves them; a later call with an earlier deadline moves it forward."""

    async def story() -> None:
        connection, wire = connected()
        events: list[str] = []
        all_ended = asyncio.Event()

        def noting(name: str) -> Any:
            def note(answer: RemotingCommand | None) -> None:
                events.append(f"{name} {'expired' if answer is None else answer.remark}")
                if len(events) == 3:
                    all_ended.set()

            return note

        connection.call(RemotingCommand.request(307), 60, noting("late"))
        connection.call(RemotingCommand.request(220), 20, noting("early"))
        connection.call(RemotingCommand.request(40), 60_000, noting("answered"))
        await asyncio.sleep(0)
        sent = FrameReader().receive(wire.written)
        assert [command.code for command in sent] == [307, 220, 40]
        answer = RemotingCommand.response(0, "done", opaque=sent[2].opaque)
        connection.data_received(encode_command(answer))
        connection.data_received(encode_command(answer))  # nobody waits for a second one
        await asyncio.wait_for(all_ended.wait(), 30)
        assert events == ["answered done", "early expired", "late expired"]

    asyncio.run(story())


def test_the_end_of_a_connection_ends_its_calls() -> None:
    """And calls after it."""

    async def story() -> None:
        connection, wire = connected()
        answers: list[RemotingCommand | None] = []
        connection.call(RemotingCommand.request(307), 60_000, answers.append)
        connection.connection_lost(None)
        assert answers == [None]
        assert connection.is_closed
        connection.call(RemotingCommand.request(307), 60_000, answers.append)
        assert answers == [None, None]
        connection.send(b"late")
        await asyncio.sleep(0)
        assert wire.written == b""

    asyncio.run(story())


@pytest.mark.parametrize(("silent_ms", "is_cut"), [(IDLE_MS_MAX, False), (IDLE_MS_MAX + 1, True)])
def test_a_silent_connection_is_cut(silent_ms: int, is_cut: bool) -> None:
    """After the longest silence that RocketMQ's servers accept."""

    async def story() -> None:
        connection, wire = connected()
        connection.data_received(b"")
        read_ms = connection._connection.received_ms
        connection.sweep(read_ms + silent_ms)
        assert wire.was_aborted is is_cut

    asyncio.run(story())
