"""Answers that depend on a write: the remark of a failed one, and waits for ``topics.json``."""

from __future__ import annotations

from collections.abc import Callable

from cometmq.broker.base.state import BrokerState, answer
from cometmq.errors import (
    DiskFull,
    MemoryShort,
    MessageIllegal,
    ResponseCode,
    StoreClosed,
    StoreError,
)
from cometmq.net.server import ServerConnection
from cometmq.wire.command.command import RemotingCommand

__all__ = ["answer_saved", "store_failure", "when_topic_saved"]


def store_failure(state: BrokerState, error: StoreError) -> tuple[int, str]:
    """Give code and remark for an error of the store; for a full disk with the free space."""
    if isinstance(error, MessageIllegal):
        return ResponseCode.MESSAGE_ILLEGAL, f"the message is illegal: {error}"
    if isinstance(error, StoreClosed | MemoryShort):
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}"
    if isinstance(error, DiskFull):
        try:
            total, used = state.disk_usage()
        except OSError as fault:
            measured = f"its use cannot be measured: {fault.strerror}"
        else:
            measured = f"{(total - used) >> 20} of {total >> 20} MiB are free"
        return ResponseCode.SERVICE_NOT_AVAILABLE, f"service not available now: {error}; {measured}"
    return ResponseCode.SYSTEM_ERROR, str(error)


def answer_saved(
    state: BrokerState,
    request: RemotingCommand,
    connection: ServerConnection,
    frame: bytes,
    failure: StoreError | None,
) -> None:
    """Answer a change: with `frame` once it is on disk, or with the error of its write."""
    if failure is not None:
        frame = answer(request, *store_failure(state, failure))
    connection.send(frame)


def when_topic_saved(
    state: BrokerState, topic: str, done: Callable[[tuple[int, str] | None], None]
) -> None:
    """Call `done` with None when a restart would find the topic, else with code and remark.

    A message is acknowledged only then: after a kill it would lie in a topic that does not exist.
    """
    if state.would_topic_survive(topic):
        done(None)
        return

    def settle(failure: StoreError | None) -> None:
        done(None if failure is None else store_failure(state, failure))

    state.when_topics_saved(settle)
