"""Staged batches as a producer sees them: what both faces share, as coroutines over `Io`.

Job: gather messages into blocks, stage them, and publish a batch on all its brokers in an order
that lets whoever comes next finish what was begun.
Must not: keep connections or run in the background.

Publishing on several brokers.  One of them, the sink's *home*, decides:

1. every other broker says that it has its tokens whole and on stable storage (prepare);
2. the home records the decision with the *plan*, the tokens of all brokers, and publishes;
3. the others publish.

A producer that dies between 2 and 3 leaves a home that is ahead.  The next call, whoever makes
it, finishes the home's plan before anything else; what it staged itself for that batch is
dropped, since the rows of a replay may lie on other brokers than those of the first attempt.

Whoever comes next has to find the home, also when it is down and the name server has forgotten
it.  So every broker has a line that names it, on stable storage: before the first decision of a
sink, and whenever a broker is new, the others are body by publishing an empty batch, the one before
this.  Before batch 0 that is batch -1, which nothing else uses.  A line without messages that was
not complete when it was read may yet be lost by a power cut; it is body once more.

A sink may have an *owner*, a Spark query for example.  Tokens carry its name into the home's
plan, and another owner is refused.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from cometmq.client.base.arguments import check_count, check_ms, checked_text
from cometmq.client.base.instance import uniq_ids_of
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.routes import MASTER_ID, RouteBook
from cometmq.client.base.transport import Io
from cometmq.client.message.send_codec import SendCodec
from cometmq.core.topic.selector import RoundRobin, publish_queues
from cometmq.errors import (
    ClientError,
    ConfigError,
    ConnectFailed,
    NoRoute,
    RequestNotSupported,
    ResponseCode,
    remote_error,
)
from cometmq.model import MessageQueue
from cometmq.model.names import check_sink
from cometmq.wire.body.route import decode_cluster_info
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.extensions.staging import (
    CountResponseHeader,
    DropBody,
    PublishBody,
    PublishHeader,
    PublishResponseHeader,
    PublishStatus,
    SinkEntry,
    SinkHeader,
    StagedListing,
    StageHeader,
    StageResponseHeader,
    StagingCode,
    TokenClaim,
    decode_body,
    encode_body,
)

__all__ = [
    "OpenToken",
    "PublishResult",
    "PublishState",
    "StagedPart",
    "StagedToken",
    "StagingCalls",
    "StagingQueues",
]

BLOCK_BYTES: Final = 128 * 1024
"""A block is sent when it has this many bytes: large enough that its request costs nothing."""
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
OWNER_CHARS_MAX: Final = 120


class PublishState(StrEnum):
    """What a publish found: PUBLISHED by this call, or ALREADY by an earlier one."""

    PUBLISHED = "PUBLISHED"
    ALREADY = "ALREADY"


@dataclass(frozen=True, slots=True)
class StagedToken:
    """What a part staged on one broker: the token's name, how many messages, and their CRC32."""

    token: str
    rows: int
    crc: int


@dataclass(frozen=True, slots=True)
class StagedPart:
    """What one part of a batch staged, by broker name; small, and made to be pickled."""

    sink: str
    batch_id: int
    part: str
    tokens: Mapping[str, StagedToken]
    rows: int
    """Messages that were added, also those a broker did not take because it has the batch."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The outcome of a publish; `rows` is what the batch has in all."""

    status: PublishState
    rows: int


@dataclass(slots=True)
class OpenToken:
    """A token while it is written."""

    token: str
    address: str
    rows: int = 0
    crc: int = 0
    sequence: int = 0
    is_refused: bool = False


@dataclass(slots=True)
class StagingQueues:
    """Where messages of a topic can go, and whose turn it is."""

    queues: tuple[MessageQueue, ...]
    addresses: dict[str, str]
    turn: RoundRobin


class StagingCalls:
    """The requests of one sink."""

    def __init__(
        self,
        io: Io,
        routes: RouteBook,
        options: ClientOptions,
        sink: str,
        *,
        publish_timeout_ms: int,
        block_bytes: int,
        owner: str = "",
    ) -> None:
        fault = check_sink(checked_text("the sink", "" if sink is None else sink))
        if fault is not None:
            raise ConfigError(fault)
        if (
            "/" in checked_text("owner", owner)
            or len(owner) > OWNER_CHARS_MAX
            or (owner and not owner.isprintable())
        ):
            raise ConfigError(
                f"owner {owner!r:.60} is not accepted: at most {OWNER_CHARS_MAX} printable"
                " characters without a slash"
            )
        check_ms("publish_timeout_ms", publish_timeout_ms)
        check_count("block_bytes", block_bytes, 1, MESSAGE_BYTES_MAX)
        self._io = io
        self._routes = routes
        self.options = options
        self.sink = sink
        self.owner = owner
        self.block_bytes = block_bytes
        self._publish_timeout_ms = publish_timeout_ms
        self.codec = SendCodec(sink, uniq_ids_of(options).next_id, options.env.clock.now_ms)

    # -- brokers ----------------------------------------------------------------------------

    async def masters(self) -> dict[str, str]:
        """Addresses of all masters the name server knows, by broker name.

        Raises:
            NoRoute: there is none.
        """
        answer = await self._routes.ask(
            RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        )
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        brokers, _ = decode_cluster_info(answer.body)
        found = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(brokers.items())
            if MASTER_ID in data.broker_addrs
        }
        if not found:
            raise NoRoute(
                f"no master is registered at {';'.join(self._routes.name_servers)}; start a broker"
            )
        return found

    async def topic(self, name: str) -> StagingQueues:
        """Where messages of a topic can go.

        Raises:
            NoRoute: nobody offers the topic, or it cannot be written.
        """
        # A part of a long-lived sink may be the first for days: what was known then may be wrong.
        self._routes.forget(name)
        route = await self._routes.find_for_send(name)
        queues = publish_queues(name, route)
        if not queues:
            raise NoRoute(
                f"the topic {name} has no queue to write to: its brokers lack the write "
                "permission or a master"
            )
        addresses = {
            broker.broker_name: broker.broker_addrs[MASTER_ID]
            for broker in route.broker_datas
            if MASTER_ID in broker.broker_addrs
        }
        start = self.options.env.chance.randrange(len(queues))
        return StagingQueues(queues, addresses, RoundRobin(start))

    async def _ask(
        self, address: str, command: RemotingCommand, timeout_ms: int | None = None
    ) -> RemotingCommand:
        answer = await self._io.request(
            address, command, timeout_ms or self.options.request_timeout_ms
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
            raise RequestNotSupported(
                answer.code,
                f"the broker at {address} cannot stage batches; only CometMQ's can: send with a "
                "Producer (at least once), or use a CometMQ broker",
            )
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        return answer

    async def listing(self, address: str, *, all_sinks: bool = False) -> StagedListing:
        """A broker's ledger and staged tokens, of this sink or of all."""
        header = SinkHeader(None if all_sinks else self.sink)
        command = RemotingCommand.request(StagingCode.LIST_STAGED, header.to_ext())
        return decode_body((await self._ask(address, command)).body, StagedListing)

    async def is_supported(self) -> bool:
        """Whether every master can stage batches."""
        for address in (await self.masters()).values():
            try:
                await self.listing(address)
            except RequestNotSupported:
                return False
        return True

    async def last_published(self) -> int | None:
        """The highest batch id any broker has published for this sink, None for none."""
        entries = await self._entries(await self.masters(), ())
        # Elsewhere than at home, a line without messages says no more than where home is.
        return max(
            (
                entry.batch_id
                for name, entry in entries.items()
                if entry is not None and entry.batch_id >= 0 and (entry.rows or entry.home == name)
            ),
            default=None,
        )

    # -- staging ----------------------------------------------------------------------------

    def token_name(self, batch_id: int, part: str, attempt: str) -> str:
        """The name of a token on its broker; the owner's, if there is one, is its end."""
        name = f"{self.sink}/{batch_id}/{part}/{attempt}"
        return f"{name}/{self.owner}" if self.owner else name

    async def stage(
        self, token: OpenToken, batch_id: int, part: str, queue: MessageQueue, block: bytes
    ) -> None:
        """Send one block."""
        header = StageHeader(
            self.sink,
            batch_id,
            part,
            token.token,
            token.sequence,
            queue.topic,
            queue.queue_id,
            self.options.env.clock.now_ms(),
        )
        command = RemotingCommand.request(StagingCode.STAGE, header.to_ext(), block)
        try:
            answer = await self._ask(token.address, command)
        except ClientError:
            # The block has a number, so a broker that has it already says so: once more is safe.
            command = RemotingCommand.request(StagingCode.STAGE, header.to_ext(), block)
            answer = await self._ask(token.address, command)
        token.sequence += 1
        if StageResponseHeader.from_command(answer).status == PublishStatus.ALREADY:
            token.is_refused = True

    # -- publishing -------------------------------------------------------------------------

    async def publish(self, batch_id: int, parts: Iterable[StagedPart | None]) -> PublishResult:
        """Publish a batch on all brokers; see the module's text for the order."""
        given = [part for part in parts if part is not None]
        self._check_parts(batch_id, given)
        plan = _plan_of(given)
        masters = await self.masters()
        lacking = sorted(plan.keys() - masters.keys())
        if lacking:
            raise ConnectFailed(
                f"batch {batch_id} of {self.sink} has staged messages on {', '.join(lacking)}, "
                "which no name server knows now; start that broker and publish again"
            )
        entries = await self._entries(masters, plan)
        home = self._home_of(masters, entries)
        decided = entries[home]
        if decided is not None:
            self._check_owner(decided)
            await self._finish(home, decided, masters, entries)
            if batch_id <= decided.batch_id:
                await self.drop(given)
                rows = _rows(decided.plan) if decided.plan.keys() - {home} else decided.rows
                is_same = batch_id == decided.batch_id
                return PublishResult(PublishState.ALREADY, rows if is_same else 0)
        others = sorted(plan.keys() - {home})
        if not await self._tell(home, batch_id, masters, entries):
            # Somebody began at the same moment, perhaps with another home: look again.
            return await self.publish(batch_id, given)
        for name in others:
            await self._publish_at(masters[name], batch_id, PublishBody(plan[name], home), True)
        tokens = plan.get(home, [])
        # A plan is for who finishes on other brokers: ledgers stay small where there are none.
        kept = plan if others else {home: tokens[:1]} if self.owner else {}
        body = PublishBody(tokens, home, kept)
        status = await self._publish_at(masters[home], batch_id, body)
        if status == PublishStatus.ALREADY:
            # Somebody was faster; their plan holds.
            return await self.publish(batch_id, given)
        for name in others:
            await self._publish_at(masters[name], batch_id, PublishBody(plan[name], home))
        return PublishResult(PublishState(status), _rows(plan))

    async def _tell(
        self,
        home: str,
        batch_id: int,
        masters: Mapping[str, str],
        entries: Mapping[str, SinkEntry | None],
    ) -> bool:
        """Let every broker that may not know it have a durable line with the home's name.

        False when a line has appeared since the ledgers were read.
        """
        body = PublishBody([], home)
        for name, entry in entries.items():
            if name == home:
                continue
            if entry is None:
                status = await self._publish_at(masters[name], batch_id - 1, body)
                if status == PublishStatus.ALREADY:
                    present = (await self.listing(masters[name])).sinks.get(self.sink)
                    if present is not None:
                        return False
            elif not entry.rows and not entry.is_complete:
                await self._publish_at(masters[name], entry.batch_id, body)
        return True

    def _check_owner(self, decided: SinkEntry) -> None:
        """A sink is its owner's: batches of another would be taken for repeats, and dropped."""
        found = next((_owner_of(claim) for claims in decided.plan.values() for claim in claims), "")
        if self.owner and found and found != self.owner:
            raise ConfigError(
                f"sink {self.sink!r} belongs to {found}, which has published batch"
                f" {decided.batch_id}, and this is {self.owner}. Nothing was published: go on as"
                f" the former (a Spark query does with its checkpoint), take another name for the"
                f" sink, or begin anew with: cometmq staged forget {self.sink}"
            )

    def _check_parts(self, batch_id: int, parts: Sequence[StagedPart]) -> None:
        if batch_id < 0:
            raise ConfigError(f"batch id {batch_id} is negative; batches count from 0")
        for part in parts:
            if (part.sink, part.batch_id) != (self.sink, batch_id):
                raise ConfigError(
                    f"part {part.part!r} belongs to batch {part.batch_id} of sink {part.sink!r}, "
                    f"not to batch {batch_id} of {self.sink!r}; publish each batch with its own "
                    "parts"
                )

    async def _entries(
        self, masters: Mapping[str, str], needed: Iterable[str]
    ) -> dict[str, SinkEntry | None]:
        """The ledgers' lines of this sink by broker; brokers that cannot stage have none."""
        entries: dict[str, SinkEntry | None] = {}
        for name, address in masters.items():
            try:
                entries[name] = (await self.listing(address)).sinks.get(self.sink)
            except RequestNotSupported:
                if name in needed:
                    raise
            except ClientError as error:
                # It may be the one that has decided about this very batch.
                raise type(error)(
                    f"the broker {name} may hold the ledger of sink {self.sink} and does not "
                    f"answer ({error}); nothing was published: try again when it does"
                ) from error
        return entries

    def _home_of(self, masters: Mapping[str, str], entries: Mapping[str, SinkEntry | None]) -> str:
        known = [(entry.batch_id, entry.home) for entry in entries.values() if entry is not None]
        home = max(known)[1] if known else min(entries, default="")
        if not home:
            raise RequestNotSupported(
                ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
                f"none of the brokers {', '.join(masters)} can stage batches; only CometMQ's can",
            )
        if home not in entries:
            raise ConnectFailed(
                f"the broker {home} decides about the batches of sink {self.sink}, and no name "
                f"server knows it now; start it, or begin anew: cometmq staged forget {self.sink}"
            )
        return home

    async def _finish(
        self,
        home: str,
        decided: SinkEntry,
        masters: Mapping[str, str],
        entries: dict[str, SinkEntry | None],
    ) -> None:
        """Publish the home's last plan where that has not happened yet."""
        if not decided.is_complete:
            # It is at it, or waits for its disk: this call waits with it.
            body = PublishBody(decided.plan.get(home, []), home)
            await self._publish_at(masters[home], decided.batch_id, body)
        for name in sorted(decided.plan.keys() - {home}):
            entry = entries.get(name)
            if entry is not None and entry.batch_id >= decided.batch_id and entry.is_complete:
                continue
            if name not in masters:
                raise ConnectFailed(
                    f"batch {decided.batch_id} of {self.sink} is decided and still has to be "
                    f"published on {name}, which no name server knows now; start that broker"
                )
            body = PublishBody(decided.plan[name], home)
            await self._publish_at(masters[name], decided.batch_id, body)

    async def _publish_at(
        self, address: str, batch_id: int, body: PublishBody, prepare: bool = False
    ) -> str:
        header = PublishHeader(self.sink, batch_id, prepare)
        command = RemotingCommand.request(
            StagingCode.PUBLISH_STAGED, header.to_ext(), encode_body(body)
        )
        answer = await self._ask(address, command, self._publish_timeout_ms)
        return PublishResponseHeader.from_command(answer).status

    async def drop(self, parts: Iterable[StagedPart | None]) -> int:
        """Give up what was staged; brokers that do not answer collect it by themselves later."""
        dropped = 0
        masters = await self.masters()
        for name, claims in _plan_of([part for part in parts if part is not None]).items():
            body = encode_body(DropBody([claim.token for claim in claims]))
            header = SinkHeader(self.sink)
            command = RemotingCommand.request(StagingCode.DROP_STAGED, header.to_ext(), body)
            if name not in masters:
                continue
            try:
                answer = await self._ask(masters[name], command)
            except ClientError:
                continue
            dropped += CountResponseHeader.from_command(answer).count
        return dropped

    async def forget(self) -> int:
        """Remove the sink from every ledger, with what it has staged; tokens dropped."""
        dropped = 0
        for address in (await self.masters()).values():
            header = SinkHeader(self.sink)
            command = RemotingCommand.request(StagingCode.FORGET_SINK, header.to_ext())
            try:
                answer = await self._ask(address, command)
            except RequestNotSupported:
                continue
            dropped += CountResponseHeader.from_command(answer).count
        return dropped


def _plan_of(parts: Sequence[StagedPart]) -> dict[str, list[TokenClaim]]:
    plan: dict[str, list[TokenClaim]] = {}
    for part in parts:
        for broker_name, staged in part.tokens.items():
            claim = TokenClaim(staged.token, staged.rows, staged.crc)
            plan.setdefault(broker_name, []).append(claim)
    return plan


def _owner_of(claim: TokenClaim) -> str:
    """The end of a token's name, behind sink, batch, part, and an attempt's time and number."""
    names = claim.token.split("/", 5)
    return names[5] if len(names) > 5 else ""


def _rows(plan: Mapping[str, Sequence[TokenClaim]]) -> int:
    return sum(claim.rows for claims in plan.values() for claim in claims)
