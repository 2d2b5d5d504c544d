"""Transactional producers: committed, rolled back, left unknown and asked about."""

import pytest
from tests.interop.stage import NEWEST, OURS, Stage, bodies_of, letter

pytestmark = pytest.mark.kind("transaction", short=(NEWEST,))
PLAN = (
    # what its producer says at once, what it says when it is asked
    ("COMMIT", "ROLLBACK"),
    ("ROLLBACK", "COMMIT"),
    ("UNKNOW", "COMMIT"),
    ("UNKNOW", "ROLLBACK"),
    ("UNKNOW", "UNKNOW"),
    ("COMMIT", "COMMIT"),
)


def transactor(stage: Stage, group: str) -> str:
    """Start a transactional producer of the client under test."""
    name = stage.unique("X")
    stage.peer.call(
        "transactor", name=name, group=group, instance=name, nameServer=stage.cluster.name_server
    )
    return name


def test_what_its_producer_says_is_done(stage: Stage) -> None:
    """Each committed message comes once, unchanged; the others never come."""
    topic, group = stage.topic(queues=1), stage.unique("TX")
    consumer = stage.push({topic: "*"}, by=stage.ours)
    sender = transactor(stage, group)
    letters = [
        letter(topic, f"{now} then {asked}".encode(), number, tags="T", keys=f"k{number}",
               properties={"local": now, "check": asked})
        for number, (now, asked) in enumerate(PLAN)
    ]  # fmt: skip
    results = stage.peer.call("transact", name=sender, messages=letters)
    assert [result["status"] for result in results] == ["SEND_OK"] * len(PLAN)
    due = {b"COMMIT then ROLLBACK", b"COMMIT then COMMIT", b"UNKNOW then COMMIT"}
    stage.ours.wait_messages(consumer, lambda got: len(got) >= len(due), timeout_s=90)
    # Those that are asked about: an unknown one again and again, the others once.
    stage.peer.wait_messages(
        sender, lambda got: bodies_of(got).count(b"UNKNOW then UNKNOW") >= 2, timeout_s=90
    )
    asked = bodies_of(stage.peer.messages(sender))
    assert set(asked) == {body for body in map(_body, PLAN) if body.startswith(b"UNKNOW")}
    for message in stage.peer.messages(sender):
        number = int(message["properties"]["n"])
        assert bodies_of([message]) == [_body(PLAN[number])]
        assert message["topic"] == topic
        # Java's client says another id of what it is asked about.
        assert message["properties"]["UNIQ_KEY"] == results[number]["msgId"]
        assert int(message["properties"]["TRANSACTION_CHECK_TIMES"]) >= 1
    stage.settle(topic, [(stage.ours, consumer)], queues=1)
    got = [one for one in stage.ours.messages(consumer) if int(one["properties"]["n"]) >= 0]
    assert sorted(bodies_of(got)) == sorted(due)
    for message in got:
        number = int(message["properties"]["n"])
        assert (message["tags"], message["keys"]) == ("T", f"k{number}")
        assert message["properties"]["TRAN_MSG"] == "true"
        assert message["properties"]["PGROUP"] == group
        assert message["msgId"] == results[number]["msgId"]
        # What its producer had left open was committed by its answer to a check.
        was_asked = "TRANSACTION_CHECK_TIMES" in message["properties"]
        assert was_asked is (PLAN[number][0] == "UNKNOW")
    stage.peer.call("closeTransactor", name=sender)


def test_another_producer_of_the_group_is_asked(stage: Stage) -> None:
    """The sender has left; a producer of its group that never sent answers the check."""
    topic, group = stage.topic(queues=1), stage.unique("TX")
    consumer = stage.push({topic: "*"}, by=stage.ours)
    first = transactor(stage, group)
    properties = {"local": "UNKNOW", "check": "COMMIT"}
    more = letter(topic, b"left behind", 0, properties=properties)
    stage.peer.call("transact", name=first, messages=[more])
    stage.peer.call("closeTransactor", name=first)
    if stage.client == OURS:
        second = transactor(stage, group)
    else:
        # Other clients register where they send to, and only once they have sent.
        second = transactor(stage, group)
        other = letter(topic, b"sends", 1, properties={"local": "ROLLBACK"})
        stage.peer.call("transact", name=second, messages=[other])
    stage.ours.wait_messages(consumer, lambda got: b"left behind" in bodies_of(got), timeout_s=120)
    assert b"left behind" in bodies_of(stage.peer.messages(second) + stage.peer.messages(first))
    stage.peer.call("closeTransactor", name=second)


def _body(plan: tuple[str, str]) -> bytes:
    return f"{plan[0]} then {plan[1]}".encode()
