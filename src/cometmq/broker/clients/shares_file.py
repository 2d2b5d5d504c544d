"""The file of what each group wants, and how far each share of a group has read.

``config/cometmqSubscriptions.json`` lets a restarted broker keep the messages for members that come
back later than others.  It is written before a member is told that it is one whose group differs.
"""

from __future__ import annotations

from collections.abc import Callable

import msgspec

from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.group.filter_shares import FilterShare, FilterShares, GroupShares
from cometmq.errors import CodecError
from cometmq.model.group import SubscriptionData
from cometmq.model.offsets import ConsumerOffset
from cometmq.net.server import ServerConnection

__all__ = ["SharesFile", "shares_snapshot"]


class _ShareEntry(msgspec.Struct, rename="camel"):
    number: int
    key: str
    wishes: tuple[SubscriptionData, ...]
    is_there: bool


class _GroupEntry(msgspec.Struct, rename="camel"):
    next_number: int
    topics: dict[str, list[_ShareEntry]]


class SharesFile(msgspec.Struct, rename="camel"):
    """What the file has."""

    groups: dict[str, _GroupEntry]
    offset_table: dict[str, dict[int, int]]
    pending: dict[str, list[int]]
    """Offsets that were moved and that no member knows yet."""

    @classmethod
    def decode(cls, raw: bytes) -> SharesFile:
        """Read the file's bytes.

        Raises:
            CodecError: they are something else.
        """
        try:
            return msgspec.json.decode(raw, type=cls)
        except msgspec.DecodeError as error:
            raise CodecError(f"no file of subscriptions: {error}") from error

    def offsets(self) -> ConsumerOffsetTable:
        """Return the table of the shares' offsets."""
        table = ConsumerOffsetTable(
            {
                key: {queue_id: ConsumerOffset(value) for queue_id, value in queues.items()}
                for key, queues in self.offset_table.items()
            }
        )
        table.restore_resets(self.pending)
        return table

    def shares(self) -> dict[str, GroupShares[ServerConnection]]:
        """Return the shares by group, without members."""
        return {
            name: GroupShares(
                {
                    topic: [
                        FilterShare(
                            item.number,
                            item.key,
                            item.wishes,
                            expected_until_ms=0 if item.is_there else None,
                        )
                        for item in shares
                    ]
                    for topic, shares in group.topics.items()
                },
                group.next_number,
            )
            for name, group in self.groups.items()
        }


def shares_snapshot(shares: FilterShares[ServerConnection]) -> Callable[[], bytes]:
    """Copy the shares; the result encodes the copy."""
    copy = SharesFile(
        {
            name: _GroupEntry(
                entry.next_number,
                {
                    topic: [
                        _ShareEntry(item.number, item.key, item.wishes, item.is_there)
                        for item in listed
                    ]
                    for topic, listed in entry.topics.items()
                    if listed
                },
            )
            for name, entry in shares.all().items()
        },
        {key: dict(queues) for key, queues in shares.own.all().items()},
        shares.own.pending_resets(),
    )
    return lambda: msgspec.json.encode(copy)
