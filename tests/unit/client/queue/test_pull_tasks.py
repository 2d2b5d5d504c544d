"""Tasks of a pull loop that begin after the loop has stopped or begun anew."""

import asyncio
from collections.abc import Coroutine
from types import SimpleNamespace
from typing import Any

import pytest

from cometmq.client.queue.pull_loop import PullLoop, PullSettings, PullState
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.filter.subscription import subscription_of
from cometmq.model import MessageQueue
from cometmq.wire.command.codes import RequestCode


class Instance:
    """A client without a connection, which keeps the tasks that the loop makes."""

    def __init__(self) -> None:
        self.tasks: list[Coroutine[Any, Any, None]] = []
        self.options = SimpleNamespace(
            namespace=SimpleNamespace(name=None, wrap=lambda name: name),
            security=SimpleNamespace(credentials=None),
            request_timeout_ms=1_000,
        )
        self.routes = SimpleNamespace(
            address=lambda name, broker_id=0: "10.0.0.1:10911",
            any_address=lambda name: "10.0.0.1:10911",
        )
        self.pool = SimpleNamespace(open_channel=lambda address: None)
        self.io = SimpleNamespace(channel=self._channel)

    def spawn(self, task: Coroutine[Any, Any, None], name: str) -> None:
        self.tasks.append(task)

    async def _channel(self, address: str, timeout_ms: int) -> None:
        """Connect; `heartbeat_to` does the same."""

    async def heartbeat_to(self, address: str) -> None:
        """Answer at once."""


def loop_of(instance: Instance) -> PullLoop:
    sink = SimpleNamespace(hold=lambda loop: None)
    return PullLoop(
        instance,  # type: ignore[arg-type]
        MessageQueue("T", "broker-a", 0),
        ProcessQueue(0, 0),
        subscription_of("T", "*", 0),
        PullSettings(RequestCode.PULL_MESSAGE, "readers", 0, 1_000),
        sink,  # type: ignore[arg-type]
    )


def introduce(loop: PullLoop, instance: Instance) -> None:
    """Begin the heartbeat that a broker asks for which does not know the consumer."""
    loop.state = PullState.INTRODUCING
    instance.spawn(loop._introduce(loop._number), "heartbeat")


@pytest.mark.parametrize("step", ["connect", "introduce"])
def test_a_task_that_begins_after_the_stop_changes_nothing(step: str) -> None:
    """A loop may stop after it made a task and before the task's first turn."""

    async def scenario() -> PullState:
        instance = Instance()
        loop = loop_of(instance)
        if step == "connect":
            loop.pull()
        else:
            introduce(loop, instance)
        loop.stop()
        await asyncio.gather(*instance.tasks)
        return loop.state

    assert asyncio.run(scenario()) is PullState.STOPPED


def test_a_task_that_begins_after_a_restart_changes_nothing() -> None:
    """Only the task of the last start goes on to pull."""

    async def scenario() -> None:
        instance = Instance()
        loop = loop_of(instance)
        loop.pull()
        loop.restart()
        first, second = instance.tasks
        await first
        assert loop.state is PullState.CONNECTING
        assert len(instance.tasks) == 2
        await second
        # The connection is not there, so the loop connects once more.
        assert len(instance.tasks) == 3
        loop.stop()
        await instance.tasks[2]

    asyncio.run(scenario())
