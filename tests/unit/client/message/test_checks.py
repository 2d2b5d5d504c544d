"""Fields of the wrong kind are named before anything is sent, not stored as str makes them."""

import enum
from itertools import count
from typing import Any

import pytest

from cometmq.client.message.send_codec import SendCodec
from cometmq.client.producer.linger import Linger
from cometmq.codec.properties import decode_properties, split_keys
from cometmq.errors import LocalProtocolError
from cometmq.model import Message, MessageQueue


class Colour(str, enum.Enum):  # noqa: UP042 - the older way, whose formatting is not the value
    RED = "red"


def codec() -> SendCodec:
    numbers = count(1)
    return SendCodec("pg", lambda: f"ID{next(numbers)}", lambda: 123)


def message(**fields: Any) -> Message:
    return Message(**{"topic": "t", "body": b"x", **fields})


WRONG = [
    ({"topic": None}, "topic None is NoneType"),
    ({"topic": ["t"]}, "topic \\['t'\\] is list"),
    ({"topic": Colour.RED}, "formats as 'Colour.RED'; give its value, 'red'"),
    ({"body": None}, "NoneType; b'' is an empty body"),
    ({"tags": ["a"]}, "tag for t \\['a'\\] is list; give a text"),
    ({"tags": 0}, "tag for t 0 is int"),
    ({"keys": 7}, "key for t 7 is int"),
    ({"keys": (7,)}, "key for t 7 is int"),
    ({"keys": ("a", 7)}, "key for t 7 is int"),
    ({"keys": b"k"}, "key for t 107 is int"),
    ({"keys": ("a b", "c")}, "key 'a b' for t has a blank"),
    ({"keys": "a b"}, "key 'a b' for t has a blank.* as a tuple, \\('a', 'b'\\)"),
    ({"tags": "a\x01"}, "tag for t 'a.x01' contains"),
    ({"topic": "no topic!"}, "illegal characters"),
    ({"properties": {"KEYS": "a"}}, "KEYS belong to RocketMQ"),
    ({"properties": {"": "a"}}, "empty name"),
    ({"properties": {"n": "a\x02"}}, "property 'n' of a message for t 'a.x02' contains"),
    ({"delay_ms": 1, "delay_level": 1}, "give one of them"),
    ({"keys": 0}, "key for t 0 is int"),
    ({"message_group": 7}, "message group for t 7 is int"),
    ({"message_group": 0}, "message group for t 0 is int"),
    ({"properties": {"n": 3}}, "property 'n' of a message for t is 3 \\(int\\)"),
    ({"properties": {"n": 0}}, "property 'n' of a message for t is 0 \\(int\\)"),
    ({"properties": {"n": None}}, "property 'n' of a message for t is None"),
    ({"properties": {7: "n"}}, "property name 7 of a message for t is int"),
    ({"properties": [("a", "b")]}, "\\(list\\); give a mapping"),
    ({"flag": "1"}, "flag '1' of a message for t"),
    ({"flag": None}, "flag None of a message for t"),
    ({"flag": 2**31}, "flag 2147483648 of a message for t"),
    (
        {"delay_ms": "3"},
        "delay_ms of a message for t is '3' \\(str\\); give whole mill",
    ),
    ({"delay_ms": 2.5}, "delay_ms of a message for t is 2.5"),
    ({"delay_ms": -1}, "delay_ms of a message for t is -1"),
    ({"deliver_time_ms": 1.7e12}, "give whole milliseconds since 1970"),
    ({"delay_level": "3"}, "delay_level of a message for t is '3'"),
    ({"delay_level": -1}, "delay_level of a message for t is -1"),
    ({"delay_level": True}, "delay_level of a message for t is True"),
]


@pytest.mark.parametrize(("fields", "fault"), WRONG)
def test_a_message_checks_its_arguments_when_it_is_made(fields: dict[str, Any], fault: str) -> None:
    """Message(...) with a wrong argument raises in the line that makes it, not at the send."""
    with pytest.raises(LocalProtocolError, match=fault):
        message(**fields)


@pytest.mark.parametrize(("fields", "fault"), WRONG)
def test_a_field_that_a_program_changes_is_checked_by_the_send(
    fields: dict[str, Any], fault: str
) -> None:
    """The same words for a message that travels alone and for one in a batch."""
    changed = message()
    for name, value in fields.items():
        setattr(changed, name, value)
    with pytest.raises(LocalProtocolError, match=fault):
        codec().prepare(changed)
    with pytest.raises(LocalProtocolError, match=fault):
        codec().batch_item(changed)


@pytest.mark.parametrize(
    ("wrong", "fault"),
    [
        (None, "None \\(NoneType\\) is no Message; give Message\\(topic, body\\)"),
        ("t", "'t' \\(str\\) is no Message"),
    ],
)
def test_what_is_no_message_is_named(wrong: Any, fault: str) -> None:
    """Alone, in a batch and with a linger, which leaves it to the send that says what is wrong."""
    with pytest.raises(LocalProtocolError, match=fault):
        codec().prepare(wrong)
    with pytest.raises(LocalProtocolError, match=fault):
        codec().batch_item(wrong)
    assert not Linger(0.01, 1000, 1000, codec(), lambda batch: None).takes(wrong)


def test_keys_as_one_text_are_one_key() -> None:
    """keys="a b" was two keys where ("a b",) is refused; both are refused, two keys are a tuple."""
    assert decode_properties(codec().prepare(message(keys="a")).properties)["KEYS"] == "a"
    both = message(keys=(key for key in ("a", "b")))
    for _ in range(2):  # an iterator gives its keys once, a message is sent as often as one likes
        assert decode_properties(codec().prepare(both).properties)["KEYS"] == "a b"


def test_members_of_enumerations_stand_for_their_value() -> None:
    """What ``Colour.RED == "red"`` promises is what is stored, though it formats otherwise."""
    given = message(
        tags=Colour.RED,
        keys=(Colour.RED, "k"),
        message_group=Colour.RED,
        properties={"colour": Colour.RED, Colour.RED: "value"},
    )
    text = codec().prepare(given).properties
    assert decode_properties(text) == {
        "UNIQ_KEY": "ID1",
        "WAIT": "true",
        "TAGS": "red",
        "KEYS": "red k",
        "__SHARDINGKEY": "red",
        "colour": "red",
        "red": "value",
    }


def test_nothing_is_nothing() -> None:
    """None and empty texts leave a field out."""
    given = message(tags="", keys="", message_group="", properties=None)
    assert decode_properties(codec().prepare(given).properties) == {
        "UNIQ_KEY": "ID1",
        "WAIT": "true",
    }
    assert codec().prepare(message(keys=None)).properties == codec().prepare(given).properties


def test_only_a_blank_separates_keys() -> None:
    """A tabulator is part of a key, for the index as for who reads it."""
    assert split_keys("a\tb  c ") == ("a\tb", "c")
    assert split_keys("") == ()


def test_half_a_surrogate_pair_is_named() -> None:
    """It cannot be written as UTF-8; alone it is refused when the frame is made."""
    made = codec()
    prepared = made.prepare(message(tags="\ud800"))
    with pytest.raises(LocalProtocolError, match="surrogate"):
        made.frame(prepared, MessageQueue("t", "b", 0), 1)
    with pytest.raises(LocalProtocolError, match="surrogate"):
        made.batch_item(message(tags="\ud800"))
