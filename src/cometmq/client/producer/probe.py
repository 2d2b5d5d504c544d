"""Asking brokers that failed whether they are back.

Job: dial the unreachable brokers of a producer's fault table; forget those that answer.
Must not: send anything; a connection is proof enough (Java's detector asks for an offset).
"""

import logging
from typing import Final

from cometmq.client.base.instance import ClientInstance
from cometmq.client.producer.core import ProducerCore
from cometmq.errors import CometError

__all__ = ["probe_unreachable"]

log = logging.getLogger("cometmq.client")
PROBE_TIMEOUT_MS: Final = 200
"""Java's ``detectTimeout``: a broker slower than this is not well yet."""


async def probe_unreachable(core: ProducerCore, instance: ClientInstance) -> None:
    """One round over the fault table."""
    faults = core.faults
    faults.prune(core.clock.now_ms())
    for broker_name in faults.unreachable():
        address = instance.routes.address(broker_name)
        if address is not None:
            try:
                await instance.io.channel(address, PROBE_TIMEOUT_MS)
            except CometError:
                continue
            log.info("the broker %s at %s is reachable again", broker_name, address)
        faults.forget(broker_name)
