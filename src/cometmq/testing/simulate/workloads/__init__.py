"""The kinds of message that the simulator mixes, one file each.

A new kind is a file with a subclass of `base.Workload` and a line in `WORKLOADS`.
"""

from __future__ import annotations

from typing import Final

from cometmq.testing.simulate.workloads.asked import AskedWorkload
from cometmq.testing.simulate.workloads.backlog import BacklogWorkload
from cometmq.testing.simulate.workloads.base import Workload
from cometmq.testing.simulate.workloads.broadcast import BroadcastWorkload
from cometmq.testing.simulate.workloads.consumption.judged import PriorityWorkload, WhyWorkload
from cometmq.testing.simulate.workloads.consumption.rescue import FreshWorkload, RescueWorkload
from cometmq.testing.simulate.workloads.delayed import DelayedWorkload
from cometmq.testing.simulate.workloads.filtered import (
    BitmapsWorkload,
    FilteredWorkload,
    ReleasedWorkload,
)
from cometmq.testing.simulate.workloads.gateway import GatewayWorkload
from cometmq.testing.simulate.workloads.growing import GrowingWorkload
from cometmq.testing.simulate.workloads.numbered import NumberedWorkload
from cometmq.testing.simulate.workloads.ordered import (
    GlobalOrderedWorkload,
    GroupOrderedWorkload,
    OrderedWorkload,
)
from cometmq.testing.simulate.workloads.parked import ParkedWorkload
from cometmq.testing.simulate.workloads.patterns.flows import FlowsWorkload
from cometmq.testing.simulate.workloads.patterns.ledger import LedgerWorkload
from cometmq.testing.simulate.workloads.patterns.mails import MailsWorkload
from cometmq.testing.simulate.workloads.patterns.orders import OrdersWorkload
from cometmq.testing.simulate.workloads.plain import PlainWorkload
from cometmq.testing.simulate.workloads.queue_order import QueueOrderWorkload
from cometmq.testing.simulate.workloads.recalled import RecalledWorkload
from cometmq.testing.simulate.workloads.reset import ResetWorkload
from cometmq.testing.simulate.workloads.retries import RetriesWorkload
from cometmq.testing.simulate.workloads.staging import StagingWorkload
from cometmq.testing.simulate.workloads.timed import TimedWorkload
from cometmq.testing.simulate.workloads.transactions import TransactionsWorkload

__all__ = ["WORKLOADS", "Workload"]

WORKLOADS: Final[dict[str, type[Workload]]] = {
    kind.name: kind
    for kind in (
        AskedWorkload,
        BacklogWorkload,
        BitmapsWorkload,
        BroadcastWorkload,
        DelayedWorkload,
        FilteredWorkload,
        FlowsWorkload,
        FreshWorkload,
        GatewayWorkload,
        GlobalOrderedWorkload,
        GroupOrderedWorkload,
        GrowingWorkload,
        LedgerWorkload,
        MailsWorkload,
        NumberedWorkload,
        OrderedWorkload,
        OrdersWorkload,
        ParkedWorkload,
        PlainWorkload,
        PriorityWorkload,
        QueueOrderWorkload,
        RecalledWorkload,
        ReleasedWorkload,
        RescueWorkload,
        ResetWorkload,
        RetriesWorkload,
        StagingWorkload,
        TimedWorkload,
        TransactionsWorkload,
        WhyWorkload,
    )
}
