"""What a message to the delay gateway must say, and what becomes of its fields."""

import pytest

from cometmq.gateway.contract import Broken, Incoming, PlannedDelivery, plan, released

OWN = frozenset({"DELAY_GATEWAY", "DELAY_GATEWAY_DEAD"})


def incoming(**properties: str) -> Incoming:
    return Incoming(b"body", "tag", ("k1", "k2"), "g", 7, properties, "ID1", 1_000)


def test_topic_and_time_make_a_plan() -> None:
    """An absolute time, or one counted from when the message was made."""
    assert plan(incoming(GATEWAY_TOPIC="Bills", GATEWAY_TIME_MS="5000"), OWN) == PlannedDelivery(
        "Bills", 5_000
    )
    assert plan(incoming(GATEWAY_TOPIC="Bills", GATEWAY_DELAY_MS="250"), OWN) == PlannedDelivery(
        "Bills", 1_250
    )


@pytest.mark.parametrize(
    ("properties", "reason"),
    [
        ({"GATEWAY_TIME_MS": "5"}, "GATEWAY_TOPIC is missing"),
        ({"GATEWAY_TOPIC": "Bills"}, "both GATEWAY_TIME_MS and GATEWAY_DELAY_MS are missing"),
        ({"GATEWAY_TOPIC": "a b", "GATEWAY_TIME_MS": "5"}, "GATEWAY_TOPIC is 'a b'"),
        ({"GATEWAY_TOPIC": "Bills", "GATEWAY_TIME_MS": "-5"}, "'-5', expected a number"),
        ({"GATEWAY_TOPIC": "Bills", "GATEWAY_DELAY_MS": "5s"}, "'5s', expected a number"),
        ({"GATEWAY_TOPIC": "DELAY_GATEWAY", "GATEWAY_TIME_MS": "5"}, "not a topic to send to"),
        ({"GATEWAY_TOPIC": "SCHEDULE_TOPIC_XXXX", "GATEWAY_TIME_MS": "5"}, "not a topic to send"),
    ],
)
def test_a_broken_message_says_why(properties: dict[str, str], reason: str) -> None:
    """The reason names property and value."""
    planned = plan(incoming(**properties), OWN)
    assert isinstance(planned, Broken)
    assert reason in planned.reason


def test_what_goes_in_comes_out_with_an_id_and_the_time_it_was_due() -> None:
    """Tags, keys, group, body, flag and user properties; RocketMQ's own are made anew."""
    taken = incoming(GATEWAY_TOPIC="Bills", GATEWAY_TIME_MS="5000", colour="red", UNIQ_KEY="ID1")
    planned = plan(taken, OWN)
    assert isinstance(planned, PlannedDelivery)
    held = planned.for_store(taken, "HELD", 4_000)
    assert (held.topic, held.deliver_time_ms, held.message_group) == ("HELD", 5_000, None)
    assert planned.for_store(taken, "HELD", 5_000).deliver_time_ms is None, "overdue: at once"
    back = Incoming(
        held.body, held.tags, tuple(held.keys), None, held.flag, dict(held.properties), "X", 1
    )
    out = released(back)
    assert (out.topic, out.body, out.tags, tuple(out.keys)) == (
        "Bills",
        b"body",
        "tag",
        ("k1", "k2"),
    )
    assert (out.message_group, out.flag) == ("g", 7)
    assert out.properties == {"colour": "red", "GATEWAY_ID": "ID1", "GATEWAY_DUE_MS": "5000"}


def test_a_dead_letter_keeps_everything_and_says_why() -> None:
    """So that somebody can mend it and send it again."""
    dead = incoming(GATEWAY_TOPIC="a b", colour="red").dead("DEAD", "why " * 500)
    assert dead.topic == "DEAD"
    assert dead.properties["GATEWAY_TOPIC"] == "a b"
    assert dead.properties["colour"] == "red"
    assert dead.properties["GATEWAY_ID"] == "ID1"
    assert len(dead.properties["GATEWAY_REASON"]) == 500
