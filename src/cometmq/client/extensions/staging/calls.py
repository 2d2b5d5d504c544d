"""The requests of staged batches, as coroutines over `Io` for both `Staging` classes.

`StagingCalls` stages blocks and publishes a batch on all its brokers, in an order that lets the
next call complete an interrupted publish.

One of the brokers, the sink's *home*, decides about a publish:

1. every other broker confirms that it has its tokens complete and on stable storage (prepare);
2. the home records its decision with the *plan*, the tokens of all brokers, and publishes;
3. the other brokers publish.

If a producer dies between 2 and 3, only the home has published.  The next call of any producer
completes the home's plan first and drops its own tokens of that batch, because a replay may have
staged its rows on other brokers than the first attempt.

The next producer must learn which broker is the home, even while the home is down and no name
server lists it.  So the ledger of every broker has a line on stable storage that names the home.
Before the first decision of a sink, and whenever a broker is new, `publish` sends an empty batch
with the previous batch id to the brokers without such a line.  Before batch 0 that is batch -1,
which nothing else uses.  A power cut can lose a line that was read before it was on stable storage,
so the empty batch is sent again.

A sink may have an *owner*, for example a Spark query.  The names of the tokens contain the owner's
name, so it becomes part of the home's plan, and `publish` refuses another owner.
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
    "StagingCalls",
    "StagingQueues",
]

BLOCK_BYTES: Final = 128 * 1024
"""A block is sent when it has this many bytes: large enough that its request costs nothing."""
MESSAGE_BYTES_MAX: Final = 4 * 1024 * 1024
OWNER_CHARS_MAX: Final = 120


class PublishState(StrEnum):
    """PUBLISHED if this call published the batch, ALREADY if an earlier call did."""

    PUBLISHED = "PUBLISHED"
    ALREADY = "ALREADY"


@dataclass(frozen=True, slots=True)
class StagedPart:
    """The messages that one part of a batch staged, by broker name.  It can be pickled."""

    sink: str
    batch_id: int
    part: str
    tokens: Mapping[str, TokenClaim]
    rows: int
    """How many messages were added, also at brokers that refused them as already published."""


@dataclass(frozen=True, slots=True)
class PublishResult:
    """The outcome of a publish; `rows` counts all messages of the batch."""

    status: PublishState
    rows: int


@dataclass(slots=True)
class OpenToken:
    """A token whose blocks are being sent."""

    token: str
    address: str
    rows: int = 0
    crc: int = 0
    sequence: int = 0
    is_refused: bool = False


@dataclass(slots=True)
class StagingQueues:
    """The writable queues of a topic, their brokers' addresses, and the next queue in turn."""

    queues: tuple[MessageQueue, ...]
    addresses: dict[str, str]
    turn: RoundRobin


class StagingCalls:
    """The requests of one sink.

    Raises:
        ConfigError: the sink, the owner or a number is not accepted.
    """

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
        addresses = {
            name: data.broker_addrs[MASTER_ID]
            for name, data in sorted(brokers.items())
            if MASTER_ID in data.broker_addrs
        }
        if not addresses:
            raise NoRoute(
                f"no master is registered at {';'.join(self._routes.name_servers)}; start a broker"
            )
        return addresses

    async def topic(self, name: str) -> StagingQueues:
        """The queues that messages of a topic can go to.

        Raises:
            NoRoute: no broker offers the topic, or it cannot be written.
        """
        # Days may pass between two parts of a long-lived sink, so the cached route may be old.
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
        """The highest batch id that any broker has published for this sink; None without any."""
        entries = await self._entries(await self.masters(), ())
        # A line without messages at another broker only names the home.
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
        """The name of a token on its broker; it ends with the owner's name, if there is one."""
        name = f"{self.sink}/{batch_id}/{part}/{attempt}"
        return f"{name}/{self.owner}" if self.owner else name

    async def stage(
        self, token: OpenToken, batch_id: int, part: str, queue: MessageQueue, block: bytes
    ) -> None:
        """Send one block.

        Raises:
            CometError: the broker refused the block or did not answer twice.
        """
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
            # The block has a number, and a broker stores each number once, so a repeat is safe.
            command = RemotingCommand.request(StagingCode.STAGE, header.to_ext(), block)
            answer = await self._ask(token.address, command)
        token.sequence += 1
        if StageResponseHeader.from_command(answer).status == PublishStatus.ALREADY:
            token.is_refused = True

    # -- publishing -------------------------------------------------------------------------

    async def publish(self, batch_id: int, parts: Iterable[StagedPart | None]) -> PublishResult:
        """Publish a batch on all brokers; the module's docstring describes the order.

        Raises:
            ConfigError: a part belongs to another batch or sink, or the sink to another owner.
            CometError: a broker refused or did not answer; the outcome is unknown.
        """
        staged = [part for part in parts if part is not None]
        self._check_parts(batch_id, staged)
        plan = _plan_of(staged)
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
                await self.drop(staged)
                rows = _rows(decided.plan) if decided.plan.keys() - {home} else decided.rows
                is_same = batch_id == decided.batch_id
                return PublishResult(PublishState.ALREADY, rows if is_same else 0)
        others = sorted(plan.keys() - {home})
        if not await self._announce_home(home, batch_id, masters, entries):
            # Another producer began at the same moment, perhaps with another home: start over.
            return await self.publish(batch_id, staged)
        for name in others:
            await self._publish_at(masters[name], batch_id, PublishBody(plan[name], home), True)
        tokens = plan.get(home, [])
        # Only a publish on other brokers needs the plan; without them the ledger stays small.
        home_plan = plan if others else {home: tokens[:1]} if self.owner else {}
        body = PublishBody(tokens, home, home_plan)
        status = await self._publish_at(masters[home], batch_id, body)
        if status == PublishStatus.ALREADY:
            # Another producer was faster; its plan holds.
            return await self.publish(batch_id, staged)
        for name in others:
            await self._publish_at(masters[name], batch_id, PublishBody(plan[name], home))
        return PublishResult(PublishState(status), _rows(plan))

    async def _announce_home(
        self,
        home: str,
        batch_id: int,
        masters: Mapping[str, str],
        entries: Mapping[str, SinkEntry | None],
    ) -> bool:
        """Write the home's name durably to every broker that may not have it.

        Returns False when a line has appeared since the ledgers were read.
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
        """Refuse another owner's sink: brokers would drop this owner's batches as repeats."""
        owner = next((_owner_of(claim) for claims in decided.plan.values() for claim in claims), "")
        if self.owner and owner and owner != self.owner:
            raise ConfigError(
                f"sink {self.sink!r} belongs to {owner}, which has published batch"
                f" {decided.batch_id}, and this is {self.owner}. Nothing was published. Continue"
                f" as that owner (a Spark query does so with its checkpoint), choose another name"
                f" for the sink, or start again with: cometmq staged forget {self.sink}"
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
        """The ledger line of this sink at each broker that can stage; None without a line."""
        entries: dict[str, SinkEntry | None] = {}
        for name, address in masters.items():
            try:
                entries[name] = (await self.listing(address)).sinks.get(self.sink)
            except RequestNotSupported:
                if name in needed:
                    raise
            except ClientError as error:
                # This broker may be the home, and may have decided about this batch.
                raise type(error)(
                    f"the broker {name} may hold the ledger of sink {self.sink} and does not "
                    f"answer ({error}); nothing was published: try again when it does"
                ) from error
        return entries

    def _home_of(self, masters: Mapping[str, str], entries: Mapping[str, SinkEntry | None]) -> str:
        homes = [(entry.batch_id, entry.home) for entry in entries.values() if entry is not None]
        home = max(homes)[1] if homes else min(entries, default="")
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
        """Publish the home's last plan on the brokers that have not published it yet."""
        if not decided.is_complete:
            # The home is still publishing or waits for its disk; this call waits for it.
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
        """Give up staged parts and count the dropped tokens.

        Brokers that do not answer collect the tokens later.

        Raises:
            NoRoute: no master is registered.
        """
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
        """Remove the sink and its staged messages from every broker; count the dropped tokens.

        Raises:
            CometError: a broker refused or did not answer.
        """
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
        for broker_name, claim in part.tokens.items():
            plan.setdefault(broker_name, []).append(claim)
    return plan


def _owner_of(claim: TokenClaim) -> str:
    """The owner in a token's name: sink/batch/part/time/number of the attempt/owner."""
    names = claim.token.split("/", 5)
    return names[5] if len(names) > 5 else ""


def _rows(plan: Mapping[str, Sequence[TokenClaim]]) -> int:
    return sum(claim.rows for claims in plan.values() for claim in claims)
