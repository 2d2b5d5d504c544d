"""The open transactions of a cluster, determined as an operator.

The reader follows the half messages and op messages of each broker from the offsets of its
transaction group, and says why each open transaction waits.  It changes and commits nothing, and
works against RocketMQ's brokers as well.

A broker writes an op message up to ``transactionOpBatchInterval`` (3 s) after the end it records,
so a transaction that has just ended may still be listed.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

from cometmq.client.base.reading import QueueReader
from cometmq.client.message.message import ReceivedMessage
from cometmq.core.transaction.open_transactions import HalfMessage, decode_op_body, half_of
from cometmq.errors import NoPermission, RemoteError
from cometmq.model import MessageQueue
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["OpenTransaction", "open_transactions_of"]

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"


class OpenTransaction(NamedTuple):
    """One half message that waits for its end; times in ms."""

    broker_name: str
    transaction_id: str
    group: str
    topic: str
    keys: str
    born_ms: int
    checks: int
    why: str
    next_check_ms: int | None
    """Earliest time of the next check; None while no producer is online."""
    queue_offset: int


class _Broker:
    """One broker that is examined."""

    def __init__(self, name: str, address: str, reader: QueueReader, settings: Mapping[str, str]):
        self.name = name
        self.address = address
        self._reader = reader
        self._calls = reader.calls
        self.timeout_ms = int(settings.get("transactionTimeOut", "6000"))
        self.interval_ms = int(settings.get("transactionCheckInterval", "30000"))
        self.check_max = int(settings.get("transactionCheckMax", "15"))
        self._online: dict[str, bool] = {}

    async def half_messages(self) -> dict[int, tuple[HalfMessage, ReceivedMessage]]:
        """The newest record of each open half message, by the offset of its first record."""
        ended: set[int] = set()
        async for message in self._messages(OP_HALF_TOPIC):
            ended.update(decode_op_body(message.body))
        open_halves: dict[int, tuple[HalfMessage, ReceivedMessage]] = {}
        async for message in self._messages(HALF_TOPIC):
            stored = message.stored
            half = half_of(
                message.queue_offset,
                stored.physical_offset,
                stored.born_timestamp_ms,
                stored.raw_properties,
            )
            first = half.first_offset if half.first_offset >= 0 else half.queue_offset
            open_halves.pop(first, None)
            if half.queue_offset not in ended:
                open_halves[first] = half, message
        return open_halves

    async def _messages(self, topic: str) -> AsyncIterator[ReceivedMessage]:
        queue = MessageQueue(topic, self.name, 0)
        begin = await self._calls.consumer_offset(self.address, TRANSACTION_GROUP, queue)
        low, end = await self._reader.bounds(queue)
        async for message in self._reader.read(queue, low if begin is None else begin, end):
            yield message

    async def is_online(self, group: str) -> bool:
        """Whether the broker knows a live producer of a group."""
        is_online = self._online.get(group)
        if is_online is None:
            request = RemotingCommand.request(
                RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}
            )
            try:
                await self._calls.ask(self.address, request)
                is_online = True
            except NoPermission:
                raise
            except RemoteError:
                is_online = False
            self._online[group] = is_online
        return is_online

    async def describe(self, half: HalfMessage, message: ReceivedMessage) -> OpenTransaction:
        """Why a half message waits, and when the broker checks it next."""
        stored = message.stored
        next_ms: int | None
        if half.check_count:
            next_ms = stored.store_timestamp_ms + self.interval_ms
        elif half.immunity_s >= 0:
            next_ms = half.born_ms + half.immunity_s * 1000
        else:
            next_ms = half.born_ms + self.timeout_ms
        if not await self.is_online(half.group):
            why, next_ms = f"no producer of {half.group} is online", None
        elif half.check_count >= self.check_max:
            why = f"not decided in {half.check_count} checks, to be given up"
        elif half.check_count:
            why = f"not decided in {half.check_count} checks"
        else:
            why = "not ended yet, not checked yet"
        properties = stored.properties
        return OpenTransaction(
            self.name,
            message.message_id,
            half.group,
            properties.get("REAL_TOPIC", ""),
            properties.get("KEYS", ""),
            half.born_ms,
            half.check_count,
            why,
            next_ms,
            half.queue_offset,
        )


async def open_transactions_of(
    name: str, address: str, reader: QueueReader, settings: Mapping[str, str]
) -> list[OpenTransaction]:
    """The open transactions of one broker; `settings` are its configuration.

    Raises:
        CometError: it does not answer, or refuses.
    """
    broker = _Broker(name, address, reader, settings)
    open_halves = await broker.half_messages()
    return [await broker.describe(half, message) for half, message in open_halves.values()]
