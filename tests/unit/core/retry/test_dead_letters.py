"""Dead letters: what they say of their death, which are chosen, and their copies."""

import pytest

from cometmq.core.retry.dead_letters import (
    REPLAY_OF,
    Death,
    DeathSelection,
    copy_properties,
    death_of,
)
from cometmq.model import MessageQueue

QUEUE = MessageQueue("%DLQ%g", "broker-a", 0)
PROPERTIES = {
    "RETRY_TOPIC": "Orders",
    "ORIGIN_MESSAGE_ID": "first",
    "TAGS": "new",
    "KEYS": "7 8",
    "reason": "no stock left",
    "UNIQ_KEY": "unique",
    "DELAY": "3",
}


def death(properties: dict[str, str] | None = None) -> Death:
    """The letter at offset 4, dead since 1,000."""
    return death_of(
        QUEUE,
        4,
        died_ms=1_000,
        message_id="last",
        reconsume_times=16,
        body_bytes=10,
        properties=PROPERTIES if properties is None else properties,
    )


def test_what_a_dead_letter_says() -> None:
    """Origin, keys and reason from its properties; empty where it has none."""
    letter = death()
    assert (letter.origin_topic, letter.origin_message_id) == ("Orders", "first")
    assert (letter.keys, letter.reason) == (("7", "8"), "no stock left")
    assert letter.position == "%DLQ%g@broker-a:0:4"
    bare = death({})
    assert (bare.origin_topic, bare.origin_message_id, bare.reason) == ("", "", "")
    proxied = death({"DLQ_ORIGIN_TOPIC": "T", "DLQ_ORIGIN_MESSAGE_ID": "i", "RETRY_TOPIC": "x"})
    assert (proxied.origin_topic, proxied.origin_message_id) == ("T", "i")


@pytest.mark.parametrize(
    ("selection", "is_chosen"),
    [
        (DeathSelection(), True),
        (DeathSelection(since_ms=1_000, until_ms=1_001), True),
        (DeathSelection(since_ms=1_001), False),
        (DeathSelection(until_ms=1_000), False),
        (DeathSelection(topics=("Orders",), tags=("old", "new"), keys=("8",)), True),
        (DeathSelection(topics=("Bills",)), False),
        (DeathSelection(tags=("old",)), False),
        (DeathSelection(keys=("9",)), False),
        (DeathSelection(reasons=("timeout", "stock")), True),
        (DeathSelection(reasons=("timeout",)), False),
        (DeathSelection(message_ids=("last",)), True),
        (DeathSelection(message_ids=("first",)), True),
        (DeathSelection(message_ids=("other",)), False),
    ],
)
def test_selection(selection: DeathSelection, is_chosen: bool) -> None:
    """All conditions hold, each with one of its values."""
    assert selection.matches(death()) is is_chosen


def test_copies() -> None:
    """To the group it stays the same message; to its first topic it is a new one."""
    anew = copy_properties(death(), PROPERTIES, is_for_group=False)
    assert anew == {
        "ORIGIN_MESSAGE_ID": "first",
        "TAGS": "new",
        "KEYS": "7 8",
        "reason": "no stock left",
        REPLAY_OF: "%DLQ%g@broker-a:0:4",
    }
    same = copy_properties(death(), PROPERTIES, is_for_group=True)
    assert same == anew | {"RETRY_TOPIC": "Orders", "UNIQ_KEY": "unique"}
    assert copy_properties(death({}), {}, is_for_group=True) == {REPLAY_OF: anew[REPLAY_OF]}
