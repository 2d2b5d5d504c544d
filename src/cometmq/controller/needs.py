"""What each request to a controller needs: brokers and tools change or see the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from cometmq.core.access.policies import Action
from cometmq.server.access.needs import Needs, of_cluster
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.extensions.adopt import ADOPT

__all__ = ["CLUSTER", "CONTROLLER_NEEDS"]

CLUSTER: Final = "controller"
"""The resource that a controller's requests need: `Cluster:controller`."""
CONTROLLER_NEEDS: Final[Mapping[int, Needs]] = {
    **dict.fromkeys(
        (
            Code.BROKER_HEARTBEAT,
            Code.CONTROLLER_ALTER_SYNC_STATE_SET,
            Code.CONTROLLER_ELECT_MASTER,
            Code.CONTROLLER_REGISTER_BROKER,
            Code.UPDATE_CONTROLLER_CONFIG,
            Code.CLEAN_BROKER_DATA,
            Code.CONTROLLER_APPLY_BROKER_ID,
            ADOPT,
        ),
        of_cluster(Action.UPDATE),
    ),
    **dict.fromkeys(
        (
            Code.CONTROLLER_GET_REPLICA_INFO,
            Code.CONTROLLER_GET_METADATA_INFO,
            Code.CONTROLLER_GET_SYNC_STATE_DATA,
            Code.GET_CONTROLLER_CONFIG,
            Code.CONTROLLER_GET_NEXT_BROKER_ID,
        ),
        of_cluster(Action.GET),
    ),
}
"""What each request to a controller needs."""
