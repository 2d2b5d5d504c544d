"""Pulls through the native core: frames in, answers out.

A consumer pulls from a queue again and again, and what is checked about its pulls stays the same.
A *plan* has the result of those checks.  It is kept under all fields of the pull on which they
depend, and every plan is dropped when topics, groups, subscriptions or the configuration change.

The core reads the frame of a pull, and copies the records into the frame of its answer.  A pull
from the end of a queue waits as the core has read it, and is answered in the same way when a
message has arrived.  What is not plain (no plan, no wanted message, a reset, bytes that are not in
memory) is left to `PullProcessor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq import native
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.broker.pull.hold import HeldPull, PullHold
from cometmq.broker.pull.late_commits import is_late
from cometmq.errors import CometError, StoreError
from cometmq.model.flags import PULL_COMMIT_OFFSET, PULL_SUSPEND
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.server import ANSWER_BATCH_BYTES, ServerConnection
from cometmq.store.base.results import GetStatus
from cometmq.wire.command.command import BINARY, FRAME_HEAD, JSON
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import pull_parts
from cometmq.wire.header.headers import PullMessageHeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.pull.filters import OwnFilter
    from cometmq.model.group import SubscriptionGroupConfig
    from cometmq.model.topic import TopicConfig
    from cometmq.native import ReadPull

    _Check = Callable[
        [PullMessageHeader, ServerConnection, int],
        tuple[TopicConfig, SubscriptionGroupConfig, frozenset[int] | None, OwnFilter | None],
    ]

__all__ = ["PULL_BYTES_MAX", "PlannedPull", "PullFront"]

PULL_BYTES_MAX: Final = 12 * 1024 * 1024
"""The most a client may ask for in maxMsgBytes: a frame ends at 16 MiB."""
_PLANS_MAX: Final = 16_384
"""A plan takes about half a kilobyte."""
_PULL_STARTS: Final = (
    b'{"code":11,', b'{"code":361,', b"\x00\x0b", b"\x01\x69", b'{"extFields":', b'{"flag":',
    b'{"language":', b'{"opaque":', b'{"version":',
)  # fmt: skip
"""How headers that may be a pull's begin, JSON and binary."""
_AT_END: Final = GetStatus.OFFSET_OVERFLOW_ONE


class _PullPlan(NamedTuple):
    """What the checks of a pull found."""

    topic: str
    queue_id: int
    group: str
    codes: frozenset[int] | None
    """The wanted tag codes; None for all."""
    parts: tuple[tuple[bytes, ...], tuple[bytes, ...]]
    """The constant parts of a JSON and of a binary answer."""
    is_committing: bool
    may_wait: bool
    """Whether such a pull waits for a message (long polling)."""
    short_polling_ms: int | None
    """How long it waits; None where the pull says it."""


class _PullPlans:
    """The plans of a broker.

    Args:
        check: the checks of `PullProcessor`.
    """

    def __init__(self, state: BrokerState, check: _Check) -> None:
        self._state = state
        self._check = check
        self._plans: dict[bytes, _PullPlan | None] = {}
        self._config: BrokerConfig | None = None
        self._revisions = (-1, -1, -1, -1, -1)

    def find(
        self, key: bytes, frame: bytes, connection: ServerConnection, now_ms: int
    ) -> _PullPlan | None:
        """Return the plan of a pull; None where there is none for such pulls.

        Args:
            key: all fields on which the checks depend.
            frame: the pull.
        """
        state = self._state
        revisions = (
            state.topics.revision,
            state.groups.revision,
            state.consumers.revision,
            state.shares.split_revision,
            state.skipped.plan_revision,
        )
        if (
            revisions != self._revisions
            or state.config is not self._config
            or len(self._plans) >= _PLANS_MAX
        ):
            self._plans.clear()
            self._revisions, self._config = revisions, state.config
        try:
            return self._plans[key]
        except KeyError:
            plan = self._plans[key] = self._make(frame, connection, now_ms)
            return plan

    def _make(self, frame: bytes, connection: ServerConnection, now_ms: int) -> _PullPlan | None:
        config = self._state.config
        if config.slave_read_enable:
            # The answer names the broker of the next pull, which depends on the record.
            return None
        try:
            header = PullMessageHeader.from_command(decode_frame(frame))
            group_name = header.consumer_group
            if self._state.shares.is_split(group_name) or self._state.skipped.concerns(group_name):
                # Members read as one in their own ways, and a plan does not tell them apart.
                return None
            topic, group, codes, filtered = self._check(header, connection, now_ms)
        except (CometError, Refusal):
            # The processor says why.
            return None
        if filtered is not None:
            return None
        flags = topic.topic_sys_flag, group.group_sys_flag
        return _PullPlan(
            header.topic,
            header.queue_id,
            header.consumer_group,
            codes,
            (pull_parts(JSON, *flags), pull_parts(BINARY, *flags)),
            bool(header.sys_flag & PULL_COMMIT_OFFSET),
            bool(header.sys_flag & PULL_SUSPEND),
            None if config.long_polling_enable else config.short_polling_time_mills,
        )


class PlannedPull(HeldPull):
    """A pull that waits, as the core has read it."""

    __slots__ = ("fields", "frame")

    def __init__(
        self,
        frame: bytes,
        fields: ReadPull,
        plan: _PullPlan,
        connection: ServerConnection,
        now_ms: int,
    ) -> None:
        wait_ms = max(0, fields[8]) if plan.short_polling_ms is None else plan.short_polling_ms
        super().__init__(
            connection,
            plan.group,
            plan.topic,
            plan.queue_id,
            fields[4],
            plan.codes,
            now_ms,
            now_ms + wait_ms,
        )
        self.frame = frame
        self.fields = fields


class PullFront:
    """Serves pulls by the native core.

    Args:
        state: the broker's.
        check: the checks of `PullProcessor`.
        hold: where pulls wait.
    """

    def __init__(self, state: BrokerState, check: _Check, hold: PullHold) -> None:
        self._state = state
        self._offsets, self._stats, self._hold = state.offsets, state.stats, hold
        self._find_plan = _PullPlans(state, check).find
        self._answer_natively = state.store.answer

    def serve(self, data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
        """Serve the pulls at the beginning of what a read brought (`net.server.Front`)."""
        read = native.read_pull
        end = answer_bytes = 0
        answers: list[bytes] = []
        if read is None or not data.startswith(_PULL_STARTS, FRAME_HEAD.size):
            return 0, b""
        while end < len(data) and answer_bytes < ANSWER_BATCH_BYTES:
            fields = read(data, end)
            if fields is None:
                break
            frame = data[end : fields[0]]
            plan = self._plan(fields, frame, connection, now_ms)
            if plan is None or (
                plan.is_committing and self._is_late(plan, fields[5], connection, now_ms)
            ):
                break
            answer = self._answer(fields, plan)
            if answer is _AT_END and plan.may_wait and not self._hold.is_full(connection):
                self._hold.add(PlannedPull(frame, fields, plan, connection, now_ms))
            elif type(answer) is bytes:
                answers.append(answer)
                answer_bytes += len(answer)
            else:
                break
            if plan.is_committing:
                self._offsets.commit(
                    plan.group, plan.topic, plan.queue_id, ConsumerOffset(fields[5]), now_ms
                )
            end = fields[0]
        return end, answers[0] if len(answers) == 1 else b"".join(answers)

    def answer_held(self, pull: PlannedPull, now_ms: int) -> bytes | None:
        """Return the frame with the messages for a pull that waited; None to serve it in Python."""
        plan = self._plan(pull.fields, pull.frame, pull.connection, now_ms)
        answer = None if plan is None else self._answer(pull.fields, plan)
        return answer if type(answer) is bytes else None

    def _plan(
        self, fields: ReadPull, frame: bytes, connection: ServerConnection, now_ms: int
    ) -> _PullPlan | None:
        """Return the plan of a pull of which nothing has to be noted or told before it is read."""
        offsets = self._offsets
        plan = self._find_plan(fields[1], frame, connection, now_ms)
        if (
            plan is None
            or offsets.is_after_loss
            or offsets.has_reset(plan.group, plan.topic, plan.queue_id)
        ):
            return None
        return plan

    def _is_late(
        self, plan: _PullPlan, commit_offset: int, connection: ServerConnection, now_ms: int
    ) -> bool:
        key = plan.group, plan.topic, plan.queue_id
        return is_late(self._state, None, *key, ConsumerOffset(commit_offset), connection, now_ms)

    def _answer(self, fields: ReadPull, plan: _PullPlan) -> bytes | GetStatus | None:
        """Return the frame of the answer to a pull, or what `MessageStore.answer` says else."""
        _, _, serialize_type, opaque, queue_offset, _, count, size, _ = fields
        try:
            answered = self._answer_natively(
                plan.topic,
                plan.queue_id,
                queue_offset,
                count,
                size if size > 0 else PULL_BYTES_MAX,
                plan.codes,
                plan.parts[serialize_type],
                opaque,
            )
        except (StoreError, OSError):
            # The processor meets the same error, and answers with it.
            return None
        if answered is None or isinstance(answered, GetStatus):
            return answered
        frame, following, number, byte_count = answered
        self._stats.got(plan.topic, plan.group, plan.queue_id, number, byte_count, following)
        return frame
