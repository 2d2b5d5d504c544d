"""Pulls through the native core: frames in, answers out.

A consumer pulls from a queue again and again, and what is checked about its pulls stays the same.
A *plan* has the result of those checks.  It is kept under all fields of the pull on which they
depend, and every plan is dropped when topics, groups, subscriptions or the configuration change.

The core reads the frame of a pull, and copies the records into the frame of its answer.  What is
not plain (no plan, no message, a reset, bytes that are not in memory) is left to `PullProcessor`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, NamedTuple

from cometmq import native
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState, Refusal
from cometmq.errors import CometError, StoreError
from cometmq.model.flags import PULL_COMMIT_OFFSET
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.server import ANSWER_BATCH_BYTES, Front, ServerConnection
from cometmq.wire.command.command import BINARY, FRAME_HEAD, JSON
from cometmq.wire.frame.framing import decode_frame
from cometmq.wire.header.fast_encode import pull_parts
from cometmq.wire.header.headers import PullMessageHeader

if TYPE_CHECKING:
    from collections.abc import Callable

    from cometmq.broker.pull.filters import RecordFilter
    from cometmq.model.group import SubscriptionGroupConfig
    from cometmq.model.topic import TopicConfig

    _Check = Callable[
        [PullMessageHeader, ServerConnection, int],
        tuple[TopicConfig, SubscriptionGroupConfig, frozenset[int] | None, RecordFilter | None],
    ]

__all__ = ["PULL_BYTES_MAX", "pull_front"]

PULL_BYTES_MAX: Final = 12 * 1024 * 1024
"""The most a client may ask for in maxMsgBytes: a frame ends at 16 MiB."""
_PLANS_MAX: Final = 16_384
"""A plan takes about half a kilobyte."""
_PULL_STARTS: Final = (
    b'{"code":11,', b'{"code":361,', b"\x00\x0b", b"\x01\x69", b'{"extFields":', b'{"flag":',
    b'{"language":', b'{"opaque":', b'{"version":',
)  # fmt: skip
"""How headers that may be a pull's begin, JSON and binary."""


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
        self._revisions = (-1, -1, -1)

    def find(
        self, key: bytes, frame: bytes, connection: ServerConnection, now_ms: int
    ) -> _PullPlan | None:
        """Return the plan of a pull; None where there is none for such pulls.

        Args:
            key: all fields on which the checks depend.
            frame: the pull.
        """
        state = self._state
        revisions = state.topics.revision, state.groups.revision, state.consumers.revision
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
        if self._state.config.slave_read_enable:
            # The answer names the broker of the next pull, which depends on the record.
            return None
        try:
            header = PullMessageHeader.from_command(decode_frame(frame))
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
        )


def pull_front(state: BrokerState, check: _Check) -> Front | None:
    """Return what serves pulls by the native core; None where it is not there.

    Args:
        state: the broker's.
        check: the checks of `PullProcessor`.
    """
    read = native.read_pull
    if read is None:
        return None
    plans = _PullPlans(state, check)
    answer, offsets, stats = state.store.answer, state.offsets, state.stats

    def serve(data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
        end = answer_bytes = 0
        answers: list[bytes] = []
        if not data.startswith(_PULL_STARTS, FRAME_HEAD.size):
            return 0, b""
        while end < len(data) and answer_bytes < ANSWER_BATCH_BYTES:
            pull = read(data, end)
            if pull is None:
                break
            frame_end, key, serialize_type, opaque, queue_offset, commit_offset, count, size = pull
            plan = plans.find(key, data[end:frame_end], connection, now_ms)
            if (
                plan is None
                or offsets.is_after_loss
                or offsets.has_reset(plan.group, plan.topic, plan.queue_id)
            ):
                break
            topic, queue_id, group, codes, parts, is_committing = plan
            try:
                answered = answer(
                    topic,
                    queue_id,
                    queue_offset,
                    count,
                    size if size > 0 else PULL_BYTES_MAX,
                    codes,
                    parts[serialize_type],
                    opaque,
                )
            except (StoreError, OSError):
                # The processor meets the same error, and answers with it.
                break
            if answered is None:
                break
            frame, following, number, byte_count = answered
            if is_committing:
                offsets.commit(group, topic, queue_id, ConsumerOffset(commit_offset), now_ms)
            stats.got(topic, group, queue_id, number, byte_count, following)
            answers.append(frame)
            answer_bytes += len(frame)
            end = frame_end
        return end, answers[0] if len(answers) == 1 else b"".join(answers)

    return serve
