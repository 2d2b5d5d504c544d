"""Which transactions are open at a cluster's brokers, found out as an operator.

Job: read half messages and op messages of each broker from where its transaction group stands, and
work out why each open one waits.  Works against RocketMQ's brokers as well.
Must not: change anything; nothing is committed.

An op message is written up to ``transactionOpBatchInterval`` (3 s) after the end it notes, so one
that has just ended may still be listed.
"""

from collections.abc import AsyncIterator, Mapping
from typing import Final, NamedTuple

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.core.transaction.open_transactions import HalfMessage, decode_op_body, half_of
from cometmq.errors import RemoteError, ResponseCode
from cometmq.model import MessageQueue
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC, TOOLS_GROUP
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import PullMessageHeader, PullResponseHeader

__all__ = ["OpenTransaction", "open_transactions_of"]

TRANSACTION_GROUP: Final = "CID_RMQ_SYS_TRANS"
PULL_COUNT: Final = 32
_SUBSCRIPTION_FLAG: Final = 4


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
    """Earliest time at which a producer is asked; None while there is none."""
    queue_offset: int


class _Broker:
    """One broker under question."""

    def __init__(self, name: str, address: str, calls: BrokerCalls, settings: Mapping[str, str]):
        self.name = name
        self.address = address
        self._calls = calls
        self.timeout_ms = int(settings.get("transactionTimeOut", "6000"))
        self.interval_ms = int(settings.get("transactionCheckInterval", "30000"))
        self.check_max = int(settings.get("transactionCheckMax", "15"))
        self._online: dict[str, bool] = {}

    async def half_messages(self) -> dict[int, tuple[HalfMessage, ReceivedMessage]]:
        """The open ones by the offset of their first place, at their newest place."""
        ended: set[int] = set()
        async for message in self._messages(OP_HALF_TOPIC):
            ended.update(decode_op_body(message.body))
        found: dict[int, tuple[HalfMessage, ReceivedMessage]] = {}
        async for message in self._messages(HALF_TOPIC):
            stored = message.stored
            half = half_of(
                message.queue_offset,
                stored.physical_offset,
                stored.born_timestamp_ms,
                stored.raw_properties,
            )
            first = half.first_offset if half.first_offset >= 0 else half.queue_offset
            found.pop(first, None)
            if half.queue_offset not in ended:
                found[first] = half, message
        return found

    async def _messages(self, topic: str) -> AsyncIterator[ReceivedMessage]:
        queue = MessageQueue(topic, self.name, 0)
        place = await self._calls.consumer_offset(self.address, TRANSACTION_GROUP, queue)
        if place is None:
            place = await self._calls.min_offset(self.address, queue)
        end = await self._calls.max_offset(self.address, queue)
        while place < end:
            header = PullMessageHeader(
                consumer_group=TOOLS_GROUP,
                topic=topic,
                queue_id=0,
                queue_offset=place,
                max_msg_nums=PULL_COUNT,
                sys_flag=_SUBSCRIPTION_FLAG,
                commit_offset=0,
                suspend_timeout_ms=0,
                subscription="*",
                expression_type="TAG",
            )
            command = RemotingCommand.request(RequestCode.PULL_MESSAGE, header.to_ext())
            try:
                answer = await self._calls.ask(self.address, command)
            except RemoteError as error:
                if error.code != ResponseCode.PULL_OFFSET_MOVED:
                    return
                place = max(place + 1, await self._calls.min_offset(self.address, queue))
                continue
            for message in split_messages(answer.body, queue):
                yield message
            place = max(place + 1, PullResponseHeader.from_command(answer).next_begin_offset)

    async def is_online(self, group: str) -> bool:
        """Whether the broker knows a live producer of a group."""
        known = self._online.get(group)
        if known is None:
            request = RemotingCommand.request(
                RequestCode.GET_PRODUCER_CONNECTION_LIST, {"producerGroup": group}
            )
            try:
                await self._calls.ask(self.address, request)
                known = True
            except RemoteError:
                known = False
            self._online[group] = known
        return known

    async def describe(self, half: HalfMessage, message: ReceivedMessage) -> OpenTransaction:
        """Why it waits and what comes next."""
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
    name: str, address: str, calls: BrokerCalls, settings: Mapping[str, str]
) -> list[OpenTransaction]:
    """The open transactions of one broker; `settings` are its configuration.

    Raises:
        ClientError: it does not answer.
    """
    broker = _Broker(name, address, calls, settings)
    found = await broker.half_messages()
    return [await broker.describe(half, message) for half, message in found.values()]
