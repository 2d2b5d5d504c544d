"""Transactional producers: committed, rolled back, left unknown and asked about.

Servers of their own for each pair, which ask after a second instead of half a minute.
"""

import contextlib
import os
from collections.abc import Iterator

import pytest
from interop.peers import GO, JAVA_CLIENTS, JAVA_SERVER, Unavailable
from tests.interop.stage import OURS, Stage, bodies_of, letter, raised

SETTINGS = {
    "transactionTimeOut": "1000",
    "transactionCheckInterval": "1000",
    "transactionOpBatchInterval": "200",
}
OLDEST = next(version for version in JAVA_CLIENTS if version.startswith("4."))
PAIRS = (
    pytest.param((f"java-{JAVA_CLIENTS[0]}", OURS), id=f"java-{JAVA_CLIENTS[0]}@{OURS}"),
    *(
        pytest.param(pair, id=f"{pair[0]}@{pair[1]}", marks=pytest.mark.full)
        for pair in (
            (f"java-{OLDEST}", OURS),
            (f"go-{GO}", OURS),
            (OURS, OURS),
            (OURS, f"java-{JAVA_SERVER}"),
        )
    ),
)
PLAN = (
    # what its producer says at once, what it says when it is asked
    ("COMMIT", "ROLLBACK"),
    ("ROLLBACK", "COMMIT"),
    ("UNKNOW", "COMMIT"),
    ("UNKNOW", "ROLLBACK"),
    ("UNKNOW", "UNKNOW"),
    ("COMMIT", "COMMIT"),
)


@pytest.fixture(scope="module", params=PAIRS)
def court(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Stage]:
    """A client and impatient servers."""
    client, server = request.param
    if os.environ.get("INTEROP_PAIRS", f"{client}@{server}") != f"{client}@{server}":
        pytest.skip("another pair was asked for")
    folder = tmp_path_factory.mktemp(f"transactions-{client}-at-{server}")
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(raised(client, server, folder, SETTINGS))
        except Unavailable as error:
            pytest.skip(f"{client} against {server}: {error}")


def transactor(court: Stage, group: str) -> str:
    """Start a transactional producer of the client under test."""
    name = court.unique("X")
    court.peer.call(
        "transactor", name=name, group=group, instance=name, nameServer=court.cluster.name_server
    )
    return name


def test_what_its_producer_says_is_done(court: Stage) -> None:
    """Each message that ends with COMMIT comes once, unchanged; the others never do."""
    topic, group = court.topic(queues=1), court.unique("TX")
    consumer = court.push({topic: "*"}, by=court.ours)
    sender = transactor(court, group)
    letters = [
        letter(topic, f"{now} then {asked}".encode(), number, tags="T", keys=f"k{number}",
               properties={"local": now, "check": asked})
        for number, (now, asked) in enumerate(PLAN)
    ]  # fmt: skip
    results = court.peer.call("transact", name=sender, messages=letters)
    assert [result["status"] for result in results] == ["SEND_OK"] * len(PLAN)
    due = {b"COMMIT then ROLLBACK", b"COMMIT then COMMIT", b"UNKNOW then COMMIT"}
    court.ours.wait_messages(consumer, lambda got: len(got) >= len(due), timeout_s=90)
    # Those that are asked about: an unknown one again and again, the others once.
    court.peer.wait_messages(
        sender, lambda got: bodies_of(got).count(b"UNKNOW then UNKNOW") >= 2, timeout_s=90
    )
    asked = bodies_of(court.peer.messages(sender))
    assert set(asked) == {body for body in map(_body, PLAN) if body.startswith(b"UNKNOW")}
    court.settle(topic, [(court.ours, consumer)], queues=1)
    got = [one for one in court.ours.messages(consumer) if int(one["properties"]["n"]) >= 0]
    assert sorted(bodies_of(got)) == sorted(due)
    for message in got:
        number = int(message["properties"]["n"])
        assert (message["tags"], message["keys"]) == ("T", f"k{number}")
        assert message["properties"]["TRAN_MSG"] == "true"
        assert message["properties"]["PGROUP"] == group
        assert message["msgId"] == results[number]["msgId"]
    court.peer.call("closeTransactor", name=sender)


def test_another_producer_of_the_group_is_asked(court: Stage) -> None:
    """The one that sent has gone; one that never sent answers for it."""
    topic, group = court.topic(queues=1), court.unique("TX")
    consumer = court.push({topic: "*"}, by=court.ours)
    first = transactor(court, group)
    properties = {"local": "UNKNOW", "check": "COMMIT"}
    more = letter(topic, b"left behind", 0, properties=properties)
    court.peer.call("transact", name=first, messages=[more])
    court.peer.call("closeTransactor", name=first)
    if court.client == OURS:
        second = transactor(court, group)
    else:
        # Other clients register where they send to, and only once they have sent.
        second = transactor(court, group)
        other = letter(topic, b"sends", 1, properties={"local": "ROLLBACK"})
        court.peer.call("transact", name=second, messages=[other])
    court.ours.wait_messages(consumer, lambda got: b"left behind" in bodies_of(got), timeout_s=120)
    assert b"left behind" in bodies_of(court.peer.messages(second) + court.peer.messages(first))
    court.peer.call("closeTransactor", name=second)


def _body(plan: tuple[str, str]) -> bytes:
    return f"{plan[0]} then {plan[1]}".encode()
