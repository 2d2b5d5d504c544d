"""The asyncio producer of transactional messages.

The producer first stores a half message, which consumers cannot see.  Then the local transaction
runs, and the producer tells the broker to deliver the message or to drop it.  If the broker gets no
answer, because the process died or the network failed, it asks any live producer of the group after
some seconds, and the check function looks the transaction up.  So every producer of the group must
be able to answer for all its transactions, and a producer registers at every broker before it sends
anything.

A half message is tried again under a new id until one is stored.  If a try was stored although its
answer was lost, a check rolls it back, since no local transaction has its id.  While a local
transaction runs in this process, its check is answered "unknown" without calling the function.  The
producer remembers outcomes, so a check after a lost end does not call the function either.  A
transaction that the program dropped without an end no longer runs: a check decides it.
"""

import asyncio
import inspect
import logging
import weakref
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import KW_ONLY, dataclass
from typing import Any, Final

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.base.arguments import check_count
from cometmq.client.base.synchronous import build_settings, same_arguments
from cometmq.client.message.message import ReceivedMessage, split_messages
from cometmq.client.producer.core import TRY_S_MIN, final_error
from cometmq.client.producer.producer import Producer
from cometmq.client.producer.sender import Sender
from cometmq.client.producer.settings import ProducerSettings
from cometmq.client.transaction.values import (
    Check,
    LocalTransaction,
    Transaction,
    TransactionOutcome,
    TransactionResult,
    end_of_check,
    end_of_half,
    outcome_of,
)
from cometmq.errors import (
    CometError,
    ConfigTypeError,
    LocalProtocolError,
    SendFailed,
    remote_error,
)
from cometmq.model import Message, MessageQueue, SendResult, SendStatus
from cometmq.model.flags import TRANSACTION_PREPARED
from cometmq.net.channel import Channel
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import CheckTransactionHeader

__all__ = ["TransactionProducer"]

log = logging.getLogger("cometmq.client")

WAITING_MAX: Final = 2_000
"""Limit of waiting checks; beyond it the oldest is dropped, and the broker asks again."""
REMEMBERED: Final = 10_000
"""How many outcomes of ended transactions are remembered."""


@dataclass(frozen=True, slots=True)
class TransactionSettings(ProducerSettings):
    """The arguments of a transactional producer; see `TransactionProducer` and `Producer`."""

    group: str
    _: KW_ONLY
    check: Check
    parallel_checks: int = 8

    def validate(self) -> None:
        """Refuse values that no transactional producer can use.

        Raises:
            ConfigError: the text names the argument and its value.
        """
        if not callable(self.check):
            raise ConfigTypeError(
                f"check is {self.check!r:.80}; it must be a function that takes a message and "
                "says what became of its transaction"
            )
        check_count("parallel_checks", self.parallel_checks)
        ProducerSettings.validate(self)


class TransactionProducer(Producer):
    """Sends messages that are delivered if, and only if, a local transaction commits.

    Args:
        group: producer group; every producer of it must answer for all its transactions.
        check: gets the `ReceivedMessage` of an open transaction and returns its outcome: a
            `TransactionOutcome`, True for commit, False for rollback, None for "ask again later".
            Plain functions run in a worker thread.  An exception counts as None.
        parallel_checks: how many checks may run at once.
        others: as for `Producer`.
    """

    @same_arguments(TransactionSettings)
    def __init__(self, *arguments: Any, **options: Any) -> None:
        settings = build_settings(TransactionSettings, arguments, options)
        self._set_up(settings)
        self._role = f"transactional producer of group {self.group}"
        self._check = settings.check
        self._parallel_checks = settings.parallel_checks
        self._running: set[str] = set()
        self._outcomes: dict[str, TransactionOutcome] = {}
        self._order: deque[str] = deque()
        self._waiting: deque[tuple[Channel, RemotingCommand]] = deque()
        self._checking = 0

    # -- life -------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start, and register at every broker of the cluster.

        Raises:
            ClientError: no name server answers.
        """
        is_new = self._instance is None
        await super().start()
        if is_new:
            await self._register()

    def _start(self) -> Sender:
        sender = super()._start()
        instance = sender.instance
        interval_ms = self.core.options.heartbeat_interval_ms
        instance.spawn(instance.every(interval_ms, self._register), "register")
        return sender

    async def _register(self) -> None:
        """Send a heartbeat to every master that the name servers know."""
        instance = self._instance
        if instance is None or instance.is_closed:
            return
        calls = AdminCalls(instance.io, instance.routes, self.core.options.request_timeout_ms)
        for broker in (await calls.cluster_info()).brokers.values():
            if broker.master_address is not None:
                await instance.heartbeat_to(broker.master_address)

    # -- transactions -----------------------------------------------------------------------

    async def send_in_transaction(
        self,
        message: Message,
        local: LocalTransaction,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        first_check_s: int | None = None,
    ) -> TransactionResult:
        """Store a half message, run ``local`` and end the transaction with its outcome.

        Args:
            local: gets the `Transaction`; may be a coroutine function.  A plain one runs on the
                event loop.  An exception leaves the outcome to a check, and is raised.
            queue: where the message goes.
            timeout_ms: for the half message; instead of the producer's.
            first_check_s: how long the broker waits before it asks; by default six seconds.

        Raises:
            CometError: the half message was not stored; ``local`` was not called.
        """
        transaction = await self.begin(
            message, queue=queue, timeout_ms=timeout_ms, first_check_s=first_check_s
        )
        outcome = TransactionOutcome.UNKNOWN
        try:
            said = local(transaction)
            if inspect.isawaitable(said):
                said = await said
            outcome = outcome_of(said, "the local transaction")
        finally:
            await self.end(transaction, outcome)
        return transaction.result()

    @asynccontextmanager
    async def transaction(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        first_check_s: int | None = None,
    ) -> AsyncIterator[Transaction]:
        """Tie a message to a block: delivered at its end, dropped after an exception.

        If the process dies inside the block, or the block is cancelled, a check decides.  The block
        may set another outcome by ``commit()``, ``rollback()`` or ``unknown()`` of the transaction.

        Raises:
            CometError: the half message was not stored; the block did not run.
        """
        transaction = await self.begin(
            message, queue=queue, timeout_ms=timeout_ms, first_check_s=first_check_s
        )
        try:
            yield transaction
        except BaseException as error:
            await self.end(transaction, transaction.block_ended(error))
            raise
        await self.end(transaction, transaction.block_ended(None))

    async def begin(
        self,
        message: Message,
        *,
        queue: MessageQueue | None = None,
        timeout_ms: int | None = None,
        first_check_s: int | None = None,
    ) -> Transaction:
        """Store a half message; `end` should follow.  `transaction` does both.

        If the program drops the transaction without an end, a check decides.

        Raises:
            LocalProtocolError: the message is delayed or breaks a limit.
            SendFailed: the half message may be lost, and was rolled back.
            CometError: the half message was not stored.
        """
        sent = await self._send_half(message, queue, timeout_ms, first_check_s)
        transaction = Transaction(message, sent)
        weakref.finalize(transaction, self._running.discard, transaction.id).atexit = False
        if sent.status is not SendStatus.SEND_OK:
            await self.end(transaction, TransactionOutcome.ROLLBACK)
            raise SendFailed(
                f"the half message {sent.message_id} was stored but its broker says "
                f"{sent.status.name}, so it may be lost; it was rolled back, send it again"
            )
        return transaction

    async def end(self, transaction: Transaction, outcome: TransactionOutcome) -> None:
        """Tell the broker the outcome.  If that fails nothing is raised: the broker will ask."""
        transaction.outcome = outcome
        self._running.discard(transaction.id)
        instance = self._instance
        if outcome is TransactionOutcome.UNKNOWN or instance is None:
            return
        self._remember(transaction.id, outcome)
        sent = transaction.sent
        try:
            sender = self._ready()
            topic = await sender.topic(sent.message_queue.topic)
            answer = await instance.io.request(
                sender.address(topic, sent.message_queue),
                end_of_half(self.group, sent, outcome),
                self.core.timeout_ms,
            )
            if answer.code != 0:
                raise remote_error(answer.code, answer.remark)
        except CometError as error:
            log.warning(
                "the %s of transaction %s was not confirmed, the broker will ask: %s",
                outcome.name.lower(),
                transaction.id,
                error,
            )
            return
        transaction.is_settled = True
        if self.traces is not None:
            self.traces.ended(transaction.message, sent.message_id, sent, outcome.name)

    def _remember(self, transaction_id: str, outcome: TransactionOutcome) -> None:
        if transaction_id not in self._outcomes:
            self._order.append(transaction_id)
        self._outcomes[transaction_id] = outcome
        while len(self._order) > REMEMBERED:
            self._outcomes.pop(self._order.popleft(), None)

    async def _send_half(
        self,
        message: Message,
        queue: MessageQueue | None,
        timeout_ms: int | None,
        first_check_s: int | None,
    ) -> SendResult:
        if message.is_delayed:
            raise LocalProtocolError(
                f"the message for {message.topic} has delay level {message.delay_level} and "
                f"deliver_time_ms {message.deliver_time_ms} and delay_ms {message.delay_ms}; a "
                "transactional message cannot be delayed"
            )
        core = self.core
        if timeout_ms is None:
            timeout_ms = core.timeout_ms
        deadline = core.clock.monotonic() + timeout_ms / 1000
        group = core.options.namespace.wrap(self.group)
        own = f"TRAN_MSG\x01true\x02PGROUP\x01{group}\x02"
        if first_check_s is not None:
            own += f"CHECK_IMMUNITY_TIME_IN_SECONDS\x01{int(first_check_s)}\x02"
        faults: list[Exception] = []
        while True:
            sender = self._ready()
            prepared = core.codec.prepare(message)
            prepared.properties += own
            prepared.sys_flag |= TRANSACTION_PREPARED
            future: asyncio.Future[SendResult] = asyncio.get_running_loop().create_future()
            if self.traces is not None:
                self.traces.watch(message, future, "TRANSACTION_HALF")
            left_ms = max(1, int((deadline - core.clock.monotonic()) * 1000))
            sending = sender.begin(prepared, future, left_ms)
            sending.tries_left = 1
            # Before the answer: a broker may check before its answer arrives.
            self._running.add(prepared.message_id)
            if queue is not None:
                sending.fixed = queue
            if queue is None and message.message_group:
                sender.pin(sending, message, None)
            else:
                sender.start(sending)
            try:
                return await future
            except asyncio.CancelledError:
                self._running.discard(prepared.message_id)
                raise
            except CometError as error:
                self._running.discard(prepared.message_id)
                faults.append(error)
                left_ms = int((deadline - core.clock.monotonic()) * 1000)
                is_over = len(faults) >= core.tries or left_ms < TRY_S_MIN * 1000
                if is_over or not core.may_retry(faults):
                    raise final_error(message.topic, faults) from error
            await asyncio.sleep(core.pause_before_retry(message.topic, len(faults), left_ms / 1000))

    # -- checks -----------------------------------------------------------------------------

    def takes(self, command: RemotingCommand) -> bool:
        """Whether a broker's request asks about a transaction of this group, or is a reply."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super().takes(command)
        try:
            messages = split_messages(command.body, MessageQueue("", "", 0))
            group = self.core.options.namespace.wrap(self.group)
            return any(m.properties.get("PGROUP") == group for m in messages)
        except CometError:
            return False

    def serve(self, channel: Channel, command: RemotingCommand) -> RemotingCommand | None:
        """Answer a broker's request; checks of transactions wait for their turn."""
        if command.code != RequestCode.CHECK_TRANSACTION_STATE:
            return super().serve(channel, command)
        instance = self._instance
        if instance is None or self._is_closed:
            return None
        self._waiting.append((channel, command))
        if len(self._waiting) > WAITING_MAX:
            self._waiting.popleft()
            log.warning("more than %d checks wait: the oldest is dropped", WAITING_MAX)
        if self._checking < self._parallel_checks:
            self._checking += 1
            instance.spawn(self._answer_checks(), "check")
        return None

    async def _answer_checks(self) -> None:
        try:
            while self._waiting:
                channel, command = self._waiting.popleft()
                try:
                    await self._answer_check(channel, command)
                except CometError as error:
                    log.warning("a check of %s was not answered: %s", channel.address, error)
        finally:
            self._checking -= 1

    async def _answer_check(self, channel: Channel, command: RemotingCommand) -> None:
        header = CheckTransactionHeader.from_command(command)
        queue = MessageQueue(header.topic or "", header.broker_name or "", 0)
        messages = split_messages(command.body, queue)
        if len(messages) != 1:
            raise LocalProtocolError(f"it has {len(messages)} messages")
        namespace = self.core.options.namespace
        message = messages[0].within(namespace.name)
        message.message_queue = MessageQueue(
            namespace.unwrap(message.stored.topic),
            header.broker_name or "",
            message.stored.queue_id,
        )
        transaction_id = message.message_id
        outcome = self._outcomes.get(transaction_id)
        if transaction_id in self._running:
            outcome = TransactionOutcome.UNKNOWN
        elif outcome is None:
            try:
                outcome = outcome_of(await self._call(message), "the check")
            except Exception:
                log.exception("the check of transaction %s failed", transaction_id)
                outcome = TransactionOutcome.UNKNOWN
        end = end_of_check(self.group, header, message.stored.topic, outcome)
        if outcome is TransactionOutcome.UNKNOWN:
            channel.oneway(end)  # gets no answer
            return
        answer = await channel.request(end, self.core.timeout_ms)
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        if self.traces is not None:
            self.traces.ended(message, transaction_id, None, outcome.name)

    async def _call(self, message: ReceivedMessage) -> object:
        """Call the program's check: a coroutine function here, a plain function in a worker."""
        check = self._check
        if inspect.iscoroutinefunction(check):
            return await check(message)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[object] = loop.create_future()

        def done(result: object) -> None:
            if future.done():
                return
            if isinstance(result, BaseException):
                future.set_exception(result)
            else:
                future.set_result(result)

        self.core.options.env.workers.submit(lambda: check(message), done)
        said = await future
        return await said if inspect.isawaitable(said) else said

    def after_fork(self) -> None:
        """In a child process: leave the transactions to the parent."""
        super().after_fork()
        self._waiting.clear()
        self._running.clear()
        self._checking = 0
