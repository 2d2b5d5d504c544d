"""Messages whose handler fails: the broker delivers them again, and in the end buries them."""

from __future__ import annotations

import asyncio
from typing import ClassVar, Final

from cometmq.client.consumer.push_consumer import PushConsumer
from cometmq.client.handling.handlers import RetryLater
from cometmq.client.message.message import ReceivedMessage
from cometmq.client.producer.producer import Producer
from cometmq.model import Message
from cometmq.model.names import dlq_topic, retry_topic
from cometmq.testing.simulate.broker_part import DELAY_LEVELS, Seen
from cometmq.testing.simulate.workloads.base import Workload, position_of

__all__ = ["RetriesWorkload"]

TOPIC: Final = "Retried"
GROUP: Final = "retrying"
TRIES_MAX: Final = 2
"""Deliveries after the first."""
FAILS: Final = {b"good": 0, b"once": 1, b"twice": 2, b"never": 99}
"""How often the handler of a message fails, by the end of its body."""
RETRY_LATE_MS: Final = 2_500
"""How long after its delay a message may come again, as no fault delays it."""
_FIRST_LEVEL: Final = 3
"""The delay level of the first try after a failure (``3 + reconsumeTimes`` of RocketMQ)."""
_LEVELS_MS: Final = tuple(int(level[:-1]) * 1000 for level in DELAY_LEVELS.split())


class RetriesWorkload(Workload):
    """A message that fails up to twice is handled; only one that always fails is a dead letter."""

    name: ClassVar[str] = "retries"
    calm_steps: ClassVar[int] = 6

    def start(self) -> None:
        cluster = self.cluster
        self._dead: set[bytes] = set()
        cluster.watch(TOPIC, self.never_twice)
        self._failed_ms: dict[tuple[bytes, int], int] = {}
        """By body and number of the try: when its handler first failed, in ms of the world."""
        self.calm_group(GROUP)
        cluster.watch(retry_topic(GROUP), self._comes_again)
        cluster.watch(dlq_topic(GROUP), self._buried)
        self.group = cluster.watch_group(GROUP)
        first, second = cluster.clients
        cluster.role("retries send", first, lambda: self.send_all(first, self._step))
        cluster.role("retries one", second, lambda: self.consume(self._member(1)))
        cluster.role("retries two", first, lambda: self.come_and_go(lambda: self._member(0)))

    def _member(self, number: int) -> PushConsumer:
        node = self.cluster.clients[number]
        return self.consumer(node, number, TOPIC, self._handle, self.group, tries_max=TRIES_MAX)

    async def _step(self, producer: Producer) -> None:
        kind = self.chance.choice(["good", "once", "twice", "never"])
        await self.send_one(producer, Message(TOPIC, self.new_body(kind.encode())))

    async def _handle(self, message: ReceivedMessage) -> None:
        await asyncio.sleep(self.chance.uniform(0, 0.05))
        if message.reconsume_times < _fails(bytes(message.body)):
            self.group.decided.add(position_of(message))
            key = (bytes(message.body), message.reconsume_times)
            self._failed_ms.setdefault(key, self.now_ms())
            raise RetryLater(reason=f"try {message.reconsume_times}")

    def _comes_again(self, seen: Seen) -> None:
        """Check that a message comes again after the delay of its try, and not too often."""
        times = seen.reconsume_times
        if times > TRIES_MAX:
            self.cluster.fail(
                f"retries: {seen.body[:30]!r} comes again as try {times}, "
                f"and {TRIES_MAX} was the last"
            )
        failed_ms = self._failed_ms.get((seen.body, times - 1))
        if failed_ms is None:
            self.cluster.fail(f"retries: {seen.body[:30]!r} comes again and has not failed")
            return
        delay_ms = _delay_ms(times - 1)
        early_ms = failed_ms + delay_ms - self.now_ms()
        clocks = self.cluster.injected
        if early_ms > 0 and not (clocks["clock-jump"] or clocks["clock-drift"]):
            self.cluster.fail(
                f"retries: {seen.body[:30]!r} comes again {early_ms} ms before the {delay_ms} ms "
                f"of try {times}"
            )

    async def calm_step(self, producer: Producer) -> None:
        """Send as before."""
        await self._step(producer)

    def check_calm(self) -> None:
        """Check besides that each try came once and in time, and that none was left out."""
        super().check_calm()
        for body in self._calm_acknowledged_ms:
            times_max = min(_fails(body), TRIES_MAX)
            begun_ms = [self._handlers_began.get((GROUP, body, times), []) for times in range(9)]
            if [len(times) for times in begun_ms] != [1] * (times_max + 1) + [0] * (8 - times_max):
                self.cluster.fail(
                    f"retries: the tries of {body[-40:]!r} began at {begun_ms} without any fault"
                )
                continue
            for times in range(times_max):
                late_ms = begun_ms[times + 1][0] - self._failed_ms[body, times] - _delay_ms(times)
                if late_ms > RETRY_LATE_MS:
                    self.cluster.fail(
                        f"retries: {body[:30]!r} came again {late_ms} ms late after try {times}"
                    )

    def _buried(self, seen: Seen) -> None:
        self._dead.add(seen.body)
        if seen.reconsume_times != TRIES_MAX + 1:
            self.cluster.fail(
                f"retries: {seen.body[:30]!r} is a dead letter after {seen.reconsume_times} "
                f"failures, not {TRIES_MAX + 1}"
            )
        if not seen.body.endswith(b"never"):
            self.cluster.fail(f"retries: {seen.body[-40:]!r} is a dead letter")

    def unsettled(self) -> str | None:
        if not self.is_sent:
            return "not everything is sent"
        missing = self.acknowledged.keys() - self.group.bodies - self._dead
        return f"{min(missing)[:30]!r} was neither handled nor buried" if missing else None

    def check(self) -> None:
        self.check_positions()
        for body in self.group.bodies:
            if body.endswith(b"never"):
                self.cluster.fail(f"retries: {body[:30]!r} was handled")


def _fails(body: bytes) -> int:
    return next(count for end, count in FAILS.items() if body.endswith(end))


def _delay_ms(failed_times: int) -> int:
    """Return the delay before the next try of a message that has failed so often before."""
    return _LEVELS_MS[min(_FIRST_LEVEL + failed_times, len(_LEVELS_MS)) - 1]
