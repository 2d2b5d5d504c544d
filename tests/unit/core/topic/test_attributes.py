"""Attributes of topics and groups: parsing, applying, and RocketMQ's words for what is refused."""

import pytest

from cometmq.core.topic.attributes import (
    GROUP_ATTRIBUTES,
    TOPIC_ATTRIBUTES,
    Attribute,
    altered_attributes,
    parse_attribute_changes,
    unserved_attributes,
)
from cometmq.errors import ConfigError


def test_changes_are_parsed() -> None:
    """Signed keys; a deletion has no value."""
    text = "+message.type=FIFO,+reserve.time=9,-queue.type"
    assert parse_attribute_changes(text) == {
        "+message.type": "FIFO",
        "+reserve.time": "9",
        "-queue.type": "",
    }
    assert parse_attribute_changes("") == {}
    assert parse_attribute_changes(None) == {}


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("message.type=FIFO", "add/alter attribute format is wrong: message.type"),
        ("nonsense", "delete attribute format is wrong: nonsense"),
        ("+a=1,+a=2", r"key duplication: \+a"),
        ("+a=1,,-b", "delete attribute format is wrong: $"),
    ],
)
def test_other_forms_are_refused(text: str, fault: str) -> None:
    """The item is named."""
    with pytest.raises(ConfigError, match=fault):
        parse_attribute_changes(text)


def test_changes_are_applied() -> None:
    """Added to what is new, changed and removed in what is there; nothing else is touched."""
    new = altered_attributes(
        TOPIC_ATTRIBUTES, {}, {"+message.type": "FIFO", "+queue.type": "SimpleCQ"}, is_new=True
    )
    assert new == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    changes = {"+message.type": "DELAY", "+reserve.time": "-1"}
    changed = altered_attributes(TOPIC_ATTRIBUTES, new, changes, is_new=False)
    assert changed == {"message.type": "DELAY", "queue.type": "SimpleCQ", "reserve.time": "-1"}
    removed = altered_attributes(TOPIC_ATTRIBUTES, changed, {"-reserve.time": ""}, is_new=False)
    assert removed == {"message.type": "DELAY", "queue.type": "SimpleCQ"}
    assert new == {"message.type": "FIFO", "queue.type": "SimpleCQ"}
    assert altered_attributes(GROUP_ATTRIBUTES, {}, {"+priority.factor": "100"}, is_new=True) == {
        "priority.factor": "100"
    }


@pytest.mark.parametrize(
    ("key", "value", "cause", "harmless"),
    [
        ("cleanup.policy", "COMPACTION", "compaction is not part of this version", "DELETE"),
        ("queue.type", "BatchCQ", "batch consume queues are not part of this", "SimpleCQ"),
        ("reserve.time", "9", "set fileReservedTime of the broker", "-1"),
        ("priority.factor", "50", "pop consumption, which it steers, is not part of", "100"),
    ],
)
def test_attributes_without_effect_are_refused(
    key: str, value: str, cause: str, harmless: str
) -> None:
    """Values that ask for what happens anyway are kept; what a Java broker left is found."""
    rules = {**TOPIC_ATTRIBUTES, **GROUP_ATTRIBUTES}
    with pytest.raises(ConfigError, match=f"{key}={value} cannot be served: .*{cause}"):
        altered_attributes(rules, {}, {f"+{key}": value}, is_new=True)
    kept = altered_attributes(rules, {}, {f"+{key}": harmless}, is_new=True)
    assert kept == {key: harmless}
    assert unserved_attributes(rules, kept) == []
    left = {"message.type": "FIFO", key: value}
    assert unserved_attributes(rules, left) == [f"{key}={value}"]
    if rules[key].is_changeable:
        removed = altered_attributes(rules, left, {f"-{key}": ""}, is_new=False)
        assert removed == {"message.type": "FIFO"}


@pytest.mark.parametrize(
    ("change", "is_new", "fault"),
    [
        ({"+no.such": "1"}, True, "unsupported key: no.such"),
        ({"+no.such": "1"}, False, "unsupported key: no.such"),
        ({"+message.type": "WRONG"}, True, r"value is not in set: \[UNSPECIFIED, MIXED, "),
        ({"+reserve.time": "-2"}, True, r"value is not in range\(-1, 9223372036854775807\)"),
        ({"+reserve.time": "soon"}, True, 'For input string: "soon"'),
        ({"+reserve.time": ""}, True, 'For input string: ""'),
        ({"-message.type": ""}, True, "only add attribute is supported while creating topic"),
        ({"message.type": "FIFO"}, False, "wrong format key: essage.type"),
        ({"-reserve.time": ""}, False, "attempt to delete a nonexistent key: reserve.time"),
        ({"+queue.type": "SimpleCQ"}, False, "attempt to update an unchangeable attribute"),
        ({"+message.type": "DELAY", "-message.type": ""}, False, "alter duplication key"),
        ({"+": "1"}, True, "kv string format wrong"),
        ({"++a": "1"}, True, "kv string format wrong"),
        ({"+a-b": "1"}, True, "kv string format wrong"),
        ({"": "1"}, True, "kv string format wrong"),
    ],
)
def test_what_is_refused(change: dict[str, str], is_new: bool, fault: str) -> None:
    """The words are RocketMQ's."""
    current = {} if is_new else {"message.type": "NORMAL", "queue.type": "BatchCQ"}
    with pytest.raises(ConfigError, match=fault):
        altered_attributes(TOPIC_ATTRIBUTES, current, change, is_new=is_new)


def test_a_value_of_a_pattern() -> None:
    """The error repeats the pattern and the value."""
    attribute = Attribute(pattern="[a-z]+")
    attribute.check("abc")
    with pytest.raises(ConfigError, match=r"not of the form \[a-z\]\+: A1"):
        attribute.check("A1")
