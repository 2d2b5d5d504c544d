"""Each cause of a lag is found from what servers and members say, of any language."""

from typing import Any

import pytest

from cometmq.client.admin.lag_causes import LagView, first_waiting, has_open_question, lag_causes
from cometmq.client.message.message import ReceivedMessage
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import decode_message, encode_message
from cometmq.core.filter.tag_filter import parse_subscription
from cometmq.model import MessageQueue
from cometmq.wire.body.client import ConsumerRunningInfo

NOW_MS = 1_000_000
QUEUES = [MessageQueue("T", "broker-a", number) for number in range(4)]
RETRY = MessageQueue("%RETRY%g", "broker-a", 0)
JAVA_STACKS = """Thread-1 TID: 9 STATE: RUNNABLE
  sun.nio.ch.EPoll.wait(EPoll.java)

ConsumeMessageThread_g_2 TID: 31 STATE: WAITING
  java.util.concurrent.LinkedBlockingQueue.take(LinkedBlockingQueue.java:433)

ConsumeMessageThread_g_1 TID: 30 STATE: TIMED_WAITING
  java.lang.Thread.sleep(Native Method)
  com.shop.Billing.charge(Billing.java:77)
"""


def state(**more: Any) -> dict[str, Any]:
    return {
        "cachedMsgCount": 0,
        "cachedMsgMinOffset": 0,
        "cachedMsgMaxOffset": 0,
        "lastPullTimestamp": NOW_MS - 100,
        "lastConsumeTimestamp": NOW_MS - 100,
        **more,
    }


def info(
    table: dict[MessageQueue, dict[str, Any]], tags: str = "*", **more: Any
) -> ConsumerRunningInfo:
    return ConsumerRunningInfo(
        subscriptions=(parse_subscription("T", tags), parse_subscription("%RETRY%g", "*")),
        queue_table=table,
        **more,
    )


def view(
    members: dict[str, ConsumerRunningInfo | None], lags: tuple[int, ...] = (10, 10, 10, 10)
) -> LagView:
    offsets: dict[MessageQueue, tuple[int, int | None]] = {
        queue: (100 + lag, 100) for queue, lag in zip(QUEUES, lags, strict=True)
    }
    return LagView("g", NOW_MS, {**offsets, RETRY: (0, None)}, members)


def message(queue_offset: int, tag: str, key: str = "") -> ReceivedMessage:
    properties = {"TAGS": tag, "KEYS": key, "UNIQ_KEY": f"ID{queue_offset}"}
    raw = encode_properties({name: value for name, value in properties.items() if value})
    stored = decode_message(encode_message("T", b"x", raw, queue_offset=queue_offset))
    return ReceivedMessage(QUEUES[0], queue_offset, 1, b"", 0, stored)


def one_cause(seen: LagView, kind: str) -> Any:
    causes = lag_causes(seen)
    assert [cause.kind for cause in causes] == [kind]
    assert causes[0].remedy
    return causes[0]


def test_nothing_waits() -> None:
    """No cause for no lag, with or without members."""
    assert lag_causes(view({}, (0, 0, 0, 0))) == []
    assert lag_causes(view({"a": info({QUEUES[0]: state()})}, (0, 0, 0, 0))) == []


def test_nobody_consumes() -> None:
    """No member, or a group that may not consume."""
    assert "40 messages" in one_cause(view({}), "no-consumer").evidence
    closed = view({})
    closed.switched_off = ["broker-a"]
    assert [cause.kind for cause in lag_causes(closed)] == ["switched-off", "no-consumer"]


def test_a_silent_member() -> None:
    """Nothing is said about queues that it may have."""
    half = info({QUEUES[0]: state(), QUEUES[1]: state()})
    assert "b did not answer" in one_cause(view({"a": half, "b": None}), "no-answer").evidence


def test_allocation() -> None:
    """Queues without a member, uneven shares, more members than queues, a topic nobody wants."""
    alone = info({QUEUES[0]: state(), QUEUES[1]: state(), QUEUES[2]: state()})
    assert "T broker-a:3" in one_cause(view({"a": alone}), "orphaned-queues").evidence
    uneven = {"a": info(dict.fromkeys(QUEUES[1:], state())), "b": info({QUEUES[0]: state()})}
    assert "a 3, b 1" in one_cause(view({**uneven}), "uneven-allocation").evidence
    many: dict[str, ConsumerRunningInfo | None] = {
        f"m{number}": info({queue: state()}) for number, queue in enumerate(QUEUES)
    }
    many["idle"] = info({})
    assert "idle get nothing" in one_cause(view(many), "fewer-queues-than-members").evidence
    other = ConsumerRunningInfo(subscriptions=(parse_subscription("U", "*"),))
    assert "40 messages" in one_cause(view({"a": other}), "topic-not-wanted").evidence


def test_a_stuck_message_of_a_java_member() -> None:
    """The message behind which others are done, and where its handler is."""
    stuck = state(cachedMsgCount=1, cachedMsgMinOffset=100, cachedMsgMaxOffset=105)
    table = {queue: state() for queue in QUEUES} | {QUEUES[0]: stuck}
    member = info(table, jstack=JAVA_STACKS)
    seen = view({"j": member}, (10, 0, 0, 0))
    assert {cause.kind for cause in lag_causes(seen)} == {"slow-handler", "hot-queue"}
    assert has_open_question(seen)
    seen.earlier = {"j": member}
    seen.samples[QUEUES[0]] = [message(100, "A", "order-7")]
    causes = {cause.kind: cause for cause in lag_causes(seen)}
    cause = causes["stuck-message"]
    assert (
        "j has not finished T broker-a:0 offset 100 (message ID100, keys order-7)" in cause.evidence
    )
    assert "9 behind it are done or filtered" in cause.evidence
    assert "Billing.charge" in cause.stack
    assert "LinkedBlockingQueue" not in cause.stack


def test_slow_handlers() -> None:
    """Messages in memory that move, with the member's own rates."""
    busy = state(cachedMsgCount=6, cachedMsgMinOffset=100, cachedMsgMaxOffset=105)
    rates = {"T": {"consumeRT": 250.0, "consumeOKTPS": 4.0}}
    member = info(dict.fromkeys(QUEUES, busy), status_table=rates)
    cause = one_cause(view({"a": member}), "slow-handler")
    assert "T: 250 ms a message, 4.0 done a second" in cause.evidence


def test_a_queue_that_is_paused_or_not_pulled() -> None:
    """The program paused it, or its loop stands still."""
    paused = info(dict.fromkeys(QUEUES, state(paused=True)))
    assert "a has paused" in one_cause(view({"a": paused}), "paused").evidence
    still = info(dict.fromkeys(QUEUES, state(lastPullTimestamp=NOW_MS - 90_000)))
    kinds = {cause.kind for cause in lag_causes(view({"a": still}))}
    assert kinds == {"not-pulled"}


def test_hot_queues_and_keys() -> None:
    """One queue has most of the lag; one key most of the messages."""
    member = info(dict.fromkeys(QUEUES, state()))
    seen = view({"a": member}, (100, 1, 1, 1))
    seen.samples[QUEUES[0]] = [message(n, "A", "k1" if n % 4 else "k2") for n in range(100, 116)]
    causes = {cause.kind: cause.evidence for cause in lag_causes(seen)}
    assert set(causes) == {"hot-queue", "hot-key"}
    assert causes["hot-queue"].startswith("100 of 103")
    assert causes["hot-key"].startswith("12 of 16")


def test_messages_that_no_filter_wants() -> None:
    """Their tags are not among those that members subscribe to."""
    member = info(dict.fromkeys(QUEUES, state()), tags="B")
    seen = view({"a": member})
    seen.samples[QUEUES[0]] = [message(n, "A") for n in range(100, 110)]
    assert "10 of 10" in one_cause(seen, "filtered").evidence


def test_retries_and_differences() -> None:
    """Failing handlers, and members that want different messages."""
    rates = {"T": {"consumeFailedTPS": 2.5}}
    half = dict.fromkeys(QUEUES[:2], state()), dict.fromkeys(QUEUES[2:], state())
    seen = view({"a": info(half[0], status_table=rates), "b": info(half[1], tags="B")})
    seen.offsets[RETRY] = (7, 3)
    causes = {cause.kind: cause.evidence for cause in lag_causes(seen)}
    assert set(causes) == {"different-subscriptions", "retrying"}
    assert "4 messages wait for another try" in causes["retrying"]
    assert "a 2.5 a second" in causes["retrying"]
    assert "TAG B wanted by b" in causes["different-subscriptions"]


def test_a_group_that_catches_up() -> None:
    """Members take messages and nothing is wrong."""
    cause = one_cause(view({"a": info(dict.fromkeys(QUEUES, state()))}), "catching-up")
    assert cause.evidence.startswith("40 messages wait")


def test_samples_are_few() -> None:
    """A pull each of the queues with the largest lag."""
    assert first_waiting(view({}, (100, 5, 0, 40))) == {
        QUEUES[0]: (100, 132),
        QUEUES[3]: (100, 132),
        QUEUES[1]: (100, 105),
    }


@pytest.mark.parametrize("text", [None, "", 'Thread 1\n  File "selectors.py", line 1, in select\n'])
def test_a_member_without_a_handler_at_work(text: str | None) -> None:
    """No stack is shown."""
    stuck = state(cachedMsgCount=1, cachedMsgMinOffset=100, cachedMsgMaxOffset=105)
    seen = view({"a": info(dict.fromkeys(QUEUES, stuck), jstack=text)})
    assert {cause.stack for cause in lag_causes(seen)} == {""}
