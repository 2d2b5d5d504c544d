"""Messages that a delay gateway takes from the brokers, stores, and sends at an exact time.

A message may come twice under the same ``GATEWAY_ID``: a crash between two steps repeats it.  The
brokers are the foreign cluster, of which the gateway uses only topics, pulls and sends.  The
gateway runs on its own machine with its own disk and restarts after each crash.
"""

from __future__ import annotations

from collections import Counter
from typing import ClassVar, Final

from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.errors import CometError
from cometmq.gateway.contract import DEAD_LETTER_TOPIC, DUE_MS, GATEWAY_TOPIC, ID, REASON
from cometmq.gateway.gateway import DelayGateway, _Producers
from cometmq.model import Message
from cometmq.store.offline.verify import FindingKind, verify_store
from cometmq.testing.loop import NodeCrashed
from cometmq.testing.simulate.broker_part import Group, Seen
from cometmq.testing.simulate.gateway_faults import GATEWAY
from cometmq.testing.simulate.workloads.base import Workload, position_of

__all__ = ["GatewayWorkload"]

TOPIC: Final = "Bills"
TAKERS: Final = "DELAY_GATEWAY"
QUEUES: Final = 8
"""Queues of the topics that the gateway creates."""
_STORE: Final = "/gateway"
_SETTINGS: Final = {
    "mappedFileSizeCommitLog": 32 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 50,
    "mappedFileSizeTimerLog": 52 * 100,
    "maxHashSlotNum": 100,
    "maxIndexNum": 400,
    "cleanFileForciblyEnable": False,
}


class _Gateway(DelayGateway):
    """Records the accepted messages: only those may its offset in the foreign cluster pass."""

    takers: Group

    async def _accept(self, producers: _Producers, message: ReceivedMessage) -> None:
        await super()._accept(producers, message)
        self.takers.decided.add(position_of(message))


class GatewayWorkload(Workload):
    """Every acknowledged message comes, never early, with its fields and one id."""

    name: ClassVar[str] = "gateway"

    def start(self) -> None:
        cluster = self.cluster
        self._due_ms: dict[bytes, int] = {}
        self._groups: dict[bytes, str | None] = {}
        self._broken: set[bytes] = set()
        self._arrived: Counter[bytes] = Counter()
        self._buried: set[bytes] = set()
        self._ids: dict[str, bytes] = {}
        self._gateway: _Gateway | None = None
        cluster.watch(GATEWAY_TOPIC, self.never_twice, QUEUES)
        cluster.watch(TOPIC, self._arrives, QUEUES)
        cluster.watch(DEAD_LETTER_TOPIC, self._is_buried, QUEUES)
        self.takers = cluster.watch_group(TAKERS, lambda seen: seen.position[1] == GATEWAY_TOPIC)
        first, _ = cluster.clients
        self._node = cluster.world.node(GATEWAY)
        cluster.hooks.watch_disk(self._node)
        cluster.on_observed.append(self._restart_failed)
        cluster.role("gateway send", first, lambda: self.send_all(first, self._step))
        cluster.role("gateway", self._node, self._run)

    # -- the gateway ----------------------------------------------------------------------------

    async def _run(self) -> None:
        """Run one life of the gateway; a failed start ends the process."""
        node, cluster = self._node, self.cluster
        gateway = _Gateway(
            cluster.name_server_address,
            _STORE,
            settings=_SETTINGS,
            client_ip=node.address,
            env=node.environment(),
            disk=node.disk,
            at=cluster.hooks.at(node, GATEWAY),
        )
        gateway.takers = self.takers
        try:
            await gateway.start()
        except (CometError, OSError) as error:
            cluster.world.record("not started", f"gateway {type(error).__name__}: {error}")
            node.crash(power_cut=False)
            raise NodeCrashed from error
        self._gateway = gateway
        await cluster.ended.wait()
        self._gateway = None
        await gateway.stop()
        self._verify()

    def _restart_failed(self) -> None:
        """Restart the gateway after a failed sync, since its store refuses writes then."""
        gateway = self._gateway
        if not self._node.is_alive:
            self._gateway = None
        elif gateway is not None and gateway.store.broker.state.store._log.failure is not None:
            self._gateway = None
            self._node.crash(power_cut=False)

    def _verify(self) -> None:
        report = verify_store(self._node.disk, _STORE)
        wrong = [
            str(finding) for finding in report.findings if finding.kind is not FindingKind.NOTE
        ]
        if wrong:
            self.cluster.fail(f"gateway: {len(wrong)} findings in its store: {wrong[0]}")

    # -- messages -------------------------------------------------------------------------------

    async def _step(self, producer: Producer) -> None:
        body = self.new_body()
        now_ms = self.cluster.world.clock.now_ms()
        delay_ms = self.chance.choice([0, self.chance.randrange(6_000)])
        due_ms = now_ms + delay_ms
        kind = self.chance.random()
        properties = {"GATEWAY_TOPIC": TOPIC, "colour": "red"}
        if kind < 0.1:
            del properties["GATEWAY_TOPIC"]
            self._broken.add(body)
        elif kind < 0.5:
            # Counted from the message's creation, which is now or later.
            properties["GATEWAY_DELAY_MS"] = str(delay_ms)
        else:
            properties["GATEWAY_TIME_MS"] = str(due_ms)
        self._due_ms[body] = due_ms
        self._groups[body] = self.chance.choice([None, "a", "b"])
        message = Message(
            GATEWAY_TOPIC, body, properties=properties, message_group=self._groups[body]
        )
        await self.send_one(producer, message, keeps_properties=False)

    def _arrives(self, seen: Seen) -> None:
        body, properties = seen.body, seen.properties
        self._arrived[body] += 1
        due_ms = self._due_ms[body]
        early_ms = max(due_ms, int(properties[DUE_MS])) - min(seen.seen_ms, seen.store_ms)
        if early_ms > 0:
            self.cluster.fail(f"gateway: {body[:30]!r} came {early_ms} ms early")
        if body in self._broken:
            self.cluster.fail(f"gateway: {body[:30]!r} came and names no topic")
        group, colour = properties.get("__SHARDINGKEY"), properties.get("colour")
        if (group, colour) != (self._groups[body], "red"):
            self.cluster.fail(f"gateway: {body[:30]!r} came as {properties}")
        self._has_one_id(seen)

    def _is_buried(self, seen: Seen) -> None:
        self._buried.add(seen.body)
        if seen.body not in self._broken or REASON not in seen.properties:
            self.cluster.fail(f"gateway: {seen.body[:30]!r} is a dead letter: {seen.properties}")
        self._has_one_id(seen)

    def _has_one_id(self, seen: Seen) -> None:
        """Check that repetitions share their message's id and two messages never do."""
        body = self._ids.setdefault(seen.properties[ID], seen.body)
        if body != seen.body or list(self._ids.values()).count(body) > 1:
            self.cluster.fail(
                f"gateway: {seen.body[:30]!r} has the id of {body[:30]!r}, or two ids"
            )

    # -- promises ------------------------------------------------------------------------------

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        if self._gateway is None:
            return "the gateway is down"
        missing = self.acknowledged.keys() - self._arrived.keys() - self._buried
        return f"{min(missing)[:30]!r} was never sent on" if missing else None

    def check(self) -> None:
        self.check_positions()
        twice = [body for body, count in self._arrived.items() if count > 1]
        if twice and not self.cluster.injected.total():
            self.cluster.fail(f"gateway: {twice[0][:30]!r} came twice though nothing went wrong")
