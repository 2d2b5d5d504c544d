"""Every kind of message with every client at both brokers: settings and pairs.

Job: what a test marked ``kind("name")`` runs against.  Beside the ordinary pairs these are foreign
clients at RocketMQ's own broker, where the same program must pass too.
Must not: contain a scenario.
"""

from typing import Final

from interop.peers import GO, JAVA_CLIENTS, JAVA_SERVER

__all__ = ["FOREIGN_PAIRS", "JAVA_OPTIONS", "KINDS", "OUR_SETTINGS", "SETTINGS", "TIMER_MAX_S"]

KINDS: Final = ("ordered", "delay", "timed", "recall", "transaction", "SQL92", "retry")
TIMER_MAX_S: Final = 86_400
LOCK_LIFE_MS: Final = 30_000
"""Go's client gives no lock back in a rebalance. Clients renew every 20 s."""
SETTINGS: Final = {
    # All levels within seconds; neighbours differ.
    "messageDelayLevel": " ".join(["1s 2s 3s 4s 5s 6s"] * 3),
    "timerWheelEnable": "true",
    "timerMaxDelaySec": str(TIMER_MAX_S),
    "recallMessageEnable": "true",
    # Producers are asked after a second instead of half a minute.
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "200",
    "enablePropertyFilter": "true",
    "enableConsumeQueueExt": "true",
    "enableCalcFilterBitMap": "true",
    "mappedFileSizeConsumeQueueExt": "4096",
}
"""Of either broker."""
OUR_SETTINGS: Final = {"rebalanceLockMaxLiveTime": str(LOCK_LIFE_MS)}
JAVA_OPTIONS: Final = (f"-Drocketmq.broker.rebalance.lockMaxLiveTime={LOCK_LIFE_MS}",)
FOREIGN_PAIRS: Final = tuple(
    (client, f"java-{JAVA_SERVER}")
    for client in (f"java-{JAVA_CLIENTS[0]}", f"java-{JAVA_CLIENTS[-1]}", f"go-{GO}")
)
