"""QUERY_CONSUME_QUEUE (321): the units of a queue as they are stored, for tools.

Shows units, their extension units, and whether a group's filter lets these pass.  A worker reads
them.  Records are not read, so a message whose unit passes may still not match.

Source: AdminBrokerProcessor.queryConsumeQueue and BitsArray of RocketMQ 5.4.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Final

from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker, refusing
from cometmq.broker.pull.filters import FilterService
from cometmq.codec.consume_queue import CQ_EXT_HEAD_BYTES, CqExtUnit, CqUnit, is_cq_ext_address
from cometmq.core.filter.consumer_filter import ConsumerFilter, encode_filter
from cometmq.core.filter.tag_filter import is_tag_type
from cometmq.errors import ResponseCode
from cometmq.model.group import SubscriptionData
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.body.stats import ConsumeQueueView, UnitView, encode_consume_queue_view
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.command.fastjson import dumps
from cometmq.wire.header.admin import QueryConsumeQueueHeader

__all__ = ["ConsumeQueueProcessor"]

_UNITS_MAX: Final = 4096
"""The most units one 321 gets; an answer must stay far below a frame."""


class ConsumeQueueProcessor:
    """The processor of code 321."""

    def __init__(self, state: BrokerState, filters: FilterService) -> None:
        self._state = state
        self._filters = filters

    def handlers(self) -> dict[int, Handler]:
        """Map the code to its processor, with refusals turned into answers."""
        return {Code.QUERY_CONSUME_QUEUE: refusing(self.consume_queue)}

    def consume_queue(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> None:
        """Serve QUERY_CONSUME_QUEUE (321).

        Raises:
            Refusal: the queue does not exist.
        """
        header = QueryConsumeQueueHeader.from_command(request)
        topic, queue_id, first = header.topic, header.queue_id, header.index
        store, state = self._state.store, self._state
        if queue_id not in store.queues(topic):
            raise Refusal(ResponseCode.SYSTEM_ERROR, f"{queue_id}@{topic} is not exist!")
        group = header.consumer_group
        online = state.consumers.get(group) if group else None
        subscription = None if online is None else online.subscriptions.get(topic)
        wanted: ConsumerFilter | None = None
        filter_data = None
        if group and subscription is None:
            filter_data = f"{group}@{topic} is not online!"
        elif group:
            wanted = self._filters.table.get(topic, group)
            # A group that filters by tags has no filter, which Java writes as null.
            filter_data = "null" if wanted is None else encode_filter(wanted)
        least, most = (
            store.min_queue_offset(topic, queue_id),
            store.max_queue_offset(topic, queue_id),
        )
        count = max(0, min(header.count, _UNITS_MAX))

        def read() -> tuple[UnitView, ...] | None:
            if not least <= first < most:
                return None
            return tuple(
                self._view(unit, store.ext_unit(topic, queue_id, unit), subscription, wanted)
                for unit in store.units(topic, queue_id, first, count)
            )

        def finish(units: tuple[UnitView, ...] | None) -> bytes:
            if units is None:
                return answer(request, 0, f"Index {first} of {queue_id}@{topic} is not exist!")
            view = ConsumeQueueView(least, most, units, subscription, filter_data)
            return answer(
                request, 0, "not set any response code", body=encode_consume_queue_view(view)
            )

        in_worker(state, request, connection, read, finish)

    def _view(
        self,
        unit: CqUnit,
        ext: CqExtUnit | None,
        subscription: SubscriptionData | None,
        wanted: ConsumerFilter | None,
    ) -> UnitView:
        fields = unit.physical_offset, unit.size, unit.tags_code
        if not is_cq_ext_address(unit.tags_code):
            return UnitView(*fields)
        if ext is None:
            return UnitView(*fields, f"Cq extend not exist!addr: {unit.tags_code}")
        return UnitView(
            *fields,
            bit_map=_digits(ext.bitmap) if ext.bitmap else None,
            ext_json=_ext_json(ext),
            is_matched=subscription is not None and self._may_match(ext, subscription, wanted),
        )

    def _may_match(
        self, ext: CqExtUnit, subscription: SubscriptionData, wanted: ConsumerFilter | None
    ) -> bool:
        if is_tag_type(subscription.expression_type):
            codes = subscription.code_set
            return not codes or ext.tags_code in codes
        return wanted is None or self._filters.table.may_match(wanted, ext)


def _ext_json(ext: CqExtUnit) -> str:
    """Write an extension unit as fastjson writes the object."""
    data: dict[str, object] = {}
    if ext.bitmap:
        data["filterBitMap"] = b64encode(ext.bitmap).decode()
    data["msgStoreTime"] = ext.store_time_ms
    data["size"] = CQ_EXT_HEAD_BYTES + len(ext.bitmap)
    data["tagsCode"] = ext.tags_code
    return dumps(data).decode()


def _digits(bitmap: bytes) -> str:
    """Write the bits, the last one first, 64 to a line."""
    return "".join(
        f"{bitmap[index]:08b}" + ("\n" if index % 8 == 0 else "")
        for index in reversed(range(len(bitmap)))
    )
