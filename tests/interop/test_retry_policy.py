"""A group's own retry policy with foreign consumers, whose client asks for nothing."""

import pytest
from interop.driver import Message
from tests.interop.stage import Stage, bodies_of, letter

from cometmq.core.retry.retry_policy import customized_policy, exponential_policy
from cometmq.model import SubscriptionGroupConfig


@pytest.mark.full
@pytest.mark.parametrize("kind", ["customized", "exponential"])
def test_the_policy_sets_the_pauses(stage: Stage, kind: str) -> None:
    """1 s, then 4 or 5 s at our broker; RocketMQ's keeps the policy for gRPC: level 3, 10 s."""
    policy = (
        customized_policy([1000, 4000])
        if kind == "customized"
        else exponential_policy(1000, 5000, 5)
    )
    is_ours = stage.server == "cometmq"
    # What no level has is kept by an exact timer.
    levels = [3] if not is_ours else [1, 0] if kind == "customized" else [1, 2]
    topic = stage.topic(queues=1)
    group = stage.unique("G")
    stage.retry_topic(group)
    stage.admin.create_group(SubscriptionGroupConfig(group, group_retry_policy=policy))
    stored = stage.admin.group_configs(group)[stage.cluster.broker_name]
    assert stored.group_retry_policy == policy
    name = stage.push({topic: "*"}, group=group, failTimes=len(levels), failLevel=0)
    stage.send(stage.producer(), [letter(topic, b"again", 0)])
    wanted = len(levels) + 1
    received: list[Message] = stage.peer.wait_messages(
        name, lambda got: len(got) >= wanted, timeout_s=60
    )
    assert bodies_of(received) == bodies_of(received[:1]) * wanted
    assert [message["reconsumeTimes"] for message in received] == list(range(wanted))
    assert [int(message["properties"].get("DELAY", 0)) for message in received[1:]] == levels
    pauses_s = {0: 4, 1: 1, 2: 5, 3: 10}
    for before, after, level in zip(received, received[1:], levels, strict=False):
        # A record's store time is when it was delivered, by the clock of one broker.
        assert after["storeTime"] - before["storeTime"] >= 1000 * pauses_s[level] - 50
