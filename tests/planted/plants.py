"""Bugs planted by hand: each is the product with one function changed while a block runs.

No plant is in the product: a plant replaces what a class has under a name, and puts it back.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from unittest import mock

import msgspec

import cometmq.store.append.appender as appender_module
import cometmq.store.recovery.recovery as recovery_module
from cometmq.broker.base.state import answer
from cometmq.broker.clients.send_back import SendBackProcessor
from cometmq.broker.delay.wheel.recall import RecallProcessor
from cometmq.broker.transaction.service import TransactionService
from cometmq.client.extensions.parking.parking import Parking
from cometmq.client.producer.request_reply import OpenRequests
from cometmq.client.queue.offsets import LocalOffsets
from cometmq.core.consume.process_queue import ProcessQueue
from cometmq.core.delay.levels import DelayLevels
from cometmq.core.extensions.growing import ALL_MOVED, QueueDrain
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.group.queue_locks import QueueLocks
from cometmq.gateway.gateway import DelayGateway
from cometmq.store.append.appender import Appender
from cometmq.store.base.results import PutResult
from cometmq.store.index.service import IndexService
from cometmq.store.log.flush import Flusher
from cometmq.store.message_store import MessageStore

__all__ = ["PLANTS", "Plant"]

Make = Callable[[Any], Any]


@dataclass(frozen=True)
class Plant:
    """A bug: what holds a name, the name, and what makes the wrong one of the right one."""

    name: str
    changes: tuple[tuple[Any, str, Make], ...]
    kinds: tuple[str, ...] = ()
    """Kinds of message that show it; others would only take time."""

    @contextmanager
    def planted(self) -> Iterator[None]:
        """The bug is in the product while the block runs."""
        patches = [
            mock.patch.object(holder, name, make(vars(holder)[name]))
            for holder, name, make in self.changes
        ]
        for patch in patches:
            patch.start()
        try:
            yield
        finally:
            for patch in reversed(patches):
                patch.stop()

    def __str__(self) -> str:
        return self.name


def _drop(original: Any) -> Any:
    """Nothing is done."""
    return lambda self, *arguments, **named: None


def _swapped(original: Any) -> Any:
    def pack_units(*arguments: Any) -> bytes:
        units: bytes = original(*arguments)
        return units[20:40] + units[:20] + units[40:] if len(units) >= 40 else units

    return pack_units


def _without_hold(original: Any) -> Any:
    def hold_queue(self: MessageStore, topic: str, queue_id: int, limit: int | None = None) -> int:
        held: int = original(self, topic, queue_id, limit)
        self.release_queue(topic, queue_id)
        return held

    return hold_queue


def _early(original: Any) -> Any:
    def due_in_ms(self: DelayLevels, level: int, deliver_time_ms: int, now_ms: int) -> int:
        wait_ms: int = original(self, level, deliver_time_ms, now_ms)
        return wait_ms - 40

    return due_in_ms


def _short_batch(original: Any) -> Any:
    def put_batch(self: Appender, topic: str, queue_id: int, items: Any, **how: Any) -> PutResult:
        result: PutResult = original(self, topic, queue_id, items[:-1] or items, **how)
        missing = len(items) - len(result.physical_offsets)
        places = result.physical_offsets + result.physical_offsets[-1:] * missing
        return msgspec.structs.replace(result, physical_offsets=places)

    return put_batch


def _shows_at_once(original: Any) -> Any:
    def request(self: Flusher) -> None:
        self._on_flushed(self._log.wrote)
        original(self)

    return request


def _moves_back(original: Any) -> Any:
    def commit(
        self: ConsumerOffsetTable, group: str, topic: str, queue_id: int, offset: int, now_ms: int
    ) -> None:
        back = 1 if offset % 3 == 0 and offset else 0
        original(self, group, topic, queue_id, offset - back * 2, now_ms)

    return commit


def _never_stored(original: Any) -> Any:
    def store(self: SendBackProcessor, request: Any, *arguments: Any) -> bytes:
        return answer(request)

    return store


class _Oldest(dict[str, Any]):
    """Whatever is looked for, the first is found."""

    def get(self, key: str, default: Any = None) -> Any:
        return next(iter(self.values()), default)


def _to_the_oldest(original: Any) -> Any:
    def serve(self: OpenRequests, command: Any) -> Any:
        kept, self._waiting = self._waiting, _Oldest(self._waiting)
        try:
            return original(self, command)
        finally:
            self._waiting = kept

    return serve


def _not_held(original: Any) -> Any:
    async def hold(self: DelayGateway, *arguments: Any) -> None:
        """As if it were: one of them in four is not."""
        if self.status.accepted % 4 == 3:
            return None
        refusal: None = await original(self, *arguments)
        return refusal

    return hold


def _one_early(original: Any) -> Any:
    def reset(
        self: ConsumerOffsetTable, group: str, topic: str, queue_id: int, offset: int, now_ms: int
    ) -> None:
        original(self, group, topic, queue_id, max(0, offset - 1), now_ms)

    return reset


PLANTS: Final = (
    Plant("a flush is dropped", ((Flusher, "_sync", _drop),), ("queue-order",)),
    Plant(
        "two units of a batch change places",
        ((appender_module, "pack_units", _swapped),),
        ("plain",),
    ),
    Plant(
        "readers see a batch while it is published",
        ((MessageStore, "hold_queue", _without_hold),),
        ("staging",),
    ),
    Plant(
        "offsets are committed before messages are handled",
        ((ProcessQueue, "commit_offset", lambda _: property(lambda self: self.pull_offset)),),
        ("plain",),
    ),
    Plant(
        "a delayed message comes 40 ms early", ((DelayLevels, "due_in_ms", _early),), ("delayed",)
    ),
    Plant(
        "a half message stays open after its end",
        ((TransactionService, "_close", _drop),),
        ("transactions",),
    ),
    Plant(
        "the last message of a batch is lost",
        ((appender_module, "encode_packed", _drop), (Appender, "put_batch", _short_batch)),
        ("plain", "staging"),
    ),
    Plant(
        "the index keeps entries behind the log's end",
        ((IndexService, "cut", lambda _: lambda self, offset: self.end),),
        ("plain", "queue-order"),
    ),
    Plant("readers see what is not flushed", ((Flusher, "request", _shows_at_once),), ("plain",)),
    Plant(
        "a committed offset moves back",
        ((ConsumerOffsetTable, "commit", _moves_back),),
        ("plain",),
    ),
    Plant(
        "a message sent back is not stored",
        ((SendBackProcessor, "_store", _never_stored),),
        ("retries",),
    ),
    Plant(
        "a queue is locked for two consumers at once",
        ((QueueLocks, "_is_expired", lambda _: lambda self, held, now_ms: True),),
        ("ordered",),
    ),
    Plant(
        "recovery leaves what lies behind the log's end",
        ((recovery_module, "cut_log", _drop),),
        ("plain", "staging", "transactions"),
    ),
    Plant(
        "later messages of a parked group are handled",
        ((Parking, "is_closed", lambda _: lambda self, message: False),),
        ("parked",),
    ),
    Plant(
        "a growing topic lets groups go before they are consumed",
        ((QueueDrain, "drained", lambda _: lambda self, consumed, moved: ALL_MOVED & ~moved),),
        ("growing",),
    ),
    Plant(
        "what is taken back is delivered all the same",
        ((RecallProcessor, "recall", lambda _: lambda self, request, *_: answer(request)),),
        ("recalled",),
    ),
    Plant(
        "a gateway lets go of messages that it does not hold",
        ((DelayGateway, "_hold", _not_held),),
        ("gateway",),
    ),
    Plant(
        "a broadcasting member forgets where it was",
        ((LocalOffsets, "_load", lambda _: lambda self: {}),),
        ("broadcast",),
    ),
    Plant(
        "an offset is reset to the message before",
        ((ConsumerOffsetTable, "reset", _one_early),),
        ("reset",),
    ),
    Plant(
        "consumers are not told that their offset was reset",
        ((ConsumerOffsetTable, "deliver_reset", _drop),),
        ("reset",),
    ),
    Plant(
        "a reply goes to whoever has waited longest",
        ((OpenRequests, "serve", _to_the_oldest),),
        ("asked",),
    ),
)
