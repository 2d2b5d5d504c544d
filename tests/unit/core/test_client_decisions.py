"""Small decisions of the client: batches, retries, subscriptions, the watchdog's verdicts."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.consume.watchdog import QueueHealth, QueueSample, QueueWatch
from cometmq.core.filter.subscription import Sql92, subscription_of
from cometmq.core.produce.batching import check_batch, split_by_size
from cometmq.core.retry.consume_retry import fallback_properties
from cometmq.errors import ConfigError, ExpressionIllegal, LocalProtocolError
from cometmq.model import Message, MessageQueue

QUEUE = MessageQueue("t", "b", 0)


# -- batches ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("messages", "fault"),
    [
        ([], "empty batch"),
        ([Message("t", b"1"), Message("u", b"2")], "message 1 of the batch goes to u"),
        ([Message("t", b"1", delay_level=3)], "delay level 3"),
        ([Message("t", b"1", deliver_time_ms=9)], "deliver_time_ms 9"),
        ([Message("t", b"1"), Message("t", b"2", wait_store_ok=False)], "wait_store_ok"),
        ([Message("%RETRY%g", b"1")], "retry topic"),
    ],
)
def test_batches_refuse_what_cannot_travel_together(messages: list[Message], fault: str) -> None:
    """The text names message and cause."""
    with pytest.raises(LocalProtocolError, match=fault):
        check_batch(messages)
    assert check_batch([Message("t", b"1")]) == "t"


@given(st.lists(st.integers(1, 50), max_size=40), st.integers(1, 60))
def test_runs_cover_all_and_keep_the_limit(sizes: list[int], limit: int) -> None:
    """Every item once, in order; only an item that alone is too large breaks the limit."""
    runs = list(split_by_size(sizes, limit))
    assert [index for begin, end in runs for index in range(begin, end)] == list(range(len(sizes)))
    for begin, end in runs:
        assert sum(sizes[begin:end]) <= limit or end - begin == 1
    for (begin, end), (_, following) in pairwise(runs):
        assert sum(sizes[begin:end]) + sizes[end] > limit
        assert following > end


# -- retry ------------------------------------------------------------------------------------


def test_a_resent_message_gets_the_level_the_broker_would_choose() -> None:
    """Level 3 + reconsumeTimes, counted once more, origin kept from the first try."""
    first = fallback_properties(
        {"TAGS": "a", "TRAN_MSG": "true", "WAIT": "false"},
        topic="t",
        message_id="id1",
        reconsume_times=0,
        max_reconsume_times=16,
        delay_level=0,
    )
    assert first == {
        "TAGS": "a",
        "RETRY_TOPIC": "t",
        "ORIGIN_MESSAGE_ID": "id1",
        "RECONSUME_TIME": "1",
        "MAX_RECONSUME_TIMES": "16",
        "DELAY": "3",
    }
    second = fallback_properties(
        first,
        topic="%RETRY%g",
        message_id="id2",
        reconsume_times=1,
        max_reconsume_times=16,
        delay_level=0,
    )
    assert (second["RETRY_TOPIC"], second["ORIGIN_MESSAGE_ID"]) == ("t", "id1")
    assert (second["DELAY"], second["RECONSUME_TIME"]) == ("4", "2")


def test_a_copy_waits_until_a_time_or_for_a_delay() -> None:
    """A delay is the broker's to count: its clock may be ahead.  Earlier times are left out."""
    base: dict[str, Any] = {"topic": "t", "message_id": "i", "reconsume_times": 2}
    before = {"DELAY": "3", "TIMER_DELIVER_MS": "7", "TIMER_DELAY_SEC": "7", "TAGS": "a"}

    def timers(**when: Any) -> dict[str, str]:
        copy = fallback_properties(before, **base, max_reconsume_times=16, delay_level=0, **when)
        return {name: copy[name] for name in copy if name.startswith(("TIMER", "DELAY"))}

    assert timers(deliver_time_ms=123_000) == {"TIMER_DELIVER_MS": "123000"}
    assert timers(deliver_time_ms=123_000, delay_ms=4_000) == {"TIMER_DELAY_MS": "4000"}


def test_chosen_levels_and_dead_letters() -> None:
    """A level of the handler's choice is kept; -1 is asked for by a count above the maximum."""
    base = {"topic": "t", "message_id": "i", "reconsume_times": 2, "max_reconsume_times": 16}
    assert fallback_properties({}, **base, delay_level=7)["DELAY"] == "7"  # type: ignore[arg-type]
    dead = fallback_properties({}, **base, delay_level=-1)  # type: ignore[arg-type]
    assert dead["RECONSUME_TIME"] == "17"
    late = fallback_properties({}, **{**base, "reconsume_times": 40}, delay_level=0)  # type: ignore[arg-type]
    assert late["DELAY"] == "18"
    # Where the group decides, only a dead letter names a maximum: one that it is above.
    open_end: dict[str, Any] = {**base, "max_reconsume_times": None}
    assert "MAX_RECONSUME_TIMES" not in fallback_properties({}, **open_end, delay_level=0)
    dead = fallback_properties({}, **open_end, delay_level=-1)
    assert (dead["RECONSUME_TIME"], dead["MAX_RECONSUME_TIMES"]) == ("3", "2")


# -- subscriptions ----------------------------------------------------------------------------


def test_expressions_as_users_write_them() -> None:
    """Blank means all; tags are stripped and hashed; SQL goes through untouched."""
    for everything in (None, "", "  ", "*"):
        assert subscription_of("t", everything, 1).sub_string == "*"
        assert not subscription_of("t", everything, 1).tags_set
    tags = subscription_of("t", " TagA || 标签 ", 5)
    assert tags.tags_set == {"TagA", "标签"}
    assert tags.code_set == {2598919, 857175}
    sql = subscription_of("t", "a > 3", 5, "SQL92")
    assert (sql.sub_string, sql.expression_type, sql.tags_set) == ("a > 3", "SQL92", frozenset())
    assert subscription_of("t", Sql92("a > 3"), 5) == sql
    assert repr(Sql92("a > 3")) == "Sql92('a > 3')"
    with pytest.raises(ExpressionIllegal, match=r"line 2 column 1: expected .*, found the end"):
        Sql92("a >\n")
    with pytest.raises(TypeError, match=r"an SQL92 filter is 5 \(int\); give a text"):
        Sql92(5)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("expression", "kind", "fault"),
    [
        ("||", "TAG", "names no tag"),
        ("", "SQL92", "empty"),
        ("a", "XPATH", "neither TAG nor"),
        ("a > 1 2", "SQL92", "line 1 column 7: expected"),
    ],
)
def test_senseless_subscriptions_are_refused(expression: str, kind: str, fault: str) -> None:
    """A typing error must not silently subscribe to nothing."""
    with pytest.raises(ConfigError, match=fault):
        subscription_of("t", expression, 1, kind)


# -- watchdog ---------------------------------------------------------------------------------


def progress(pull: int, held: int = 0, finished: int = 0, end: int = 10) -> QueueSample:
    return QueueSample(pull, held, finished, end)


@pytest.mark.parametrize(
    ("first", "then", "verdict"),
    [
        (progress(10), progress(10), QueueHealth.IDLE),
        (progress(5), progress(6), QueueHealth.HEALTHY),
        (progress(5, held=3), progress(5, held=2, finished=1), QueueHealth.HEALTHY),
        (progress(5, held=3), progress(5, held=3), QueueHealth.HANDLERS_STUCK),
        (progress(10, held=3), progress(10, held=3), QueueHealth.HANDLERS_STUCK),
        (progress(5), progress(5), QueueHealth.PULL_STUCK),
        (progress(5), progress(10), QueueHealth.IDLE),
        (progress(20), progress(20), QueueHealth.IDLE),
    ],
)
def test_verdicts(first: QueueSample, then: QueueSample, verdict: QueueHealth) -> None:
    """The table of the module, after the patience has run out."""
    watch = QueueWatch(QUEUE, 60_000, 0)
    watch.judge(first, 0)
    assert watch.judge(then, 60_000) is verdict


def test_patience_comes_before_alarm() -> None:
    """A short stillness is no alarm; a restart begins a new period."""
    watch = QueueWatch(QUEUE, 60_000, 0)
    assert "not sampled" in watch.describe(0)
    watch.judge(progress(5), 0)
    assert watch.judge(progress(5), 59_999) is QueueHealth.HEALTHY
    assert watch.judge(progress(5), 60_000) is QueueHealth.PULL_STUCK
    text = watch.describe(60_000)
    assert "60000 ms" in text
    assert "lag 5" in text
    watch.restarted(60_000)
    assert watch.judge(progress(5), 100_000) is QueueHealth.HEALTHY
