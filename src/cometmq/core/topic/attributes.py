"""Attributes of topics and groups: their names and values, and changes to them.

The module parses ``+name=value`` and ``-name``, checks names and values, and computes the new
attributes.  It refuses an attribute that asks for a feature this version does not have.  Such an
attribute stays if a Java broker stored it before, and `unserved_attributes` lists it.

Refusals of names, forms and ranges use RocketMQ's words, since tools show them.
Source: AttributeParser, AttributeUtil, TopicAttributes and SubscriptionGroupAttributes of 5.4.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from cometmq.errors import ConfigError

__all__ = [
    "GROUP_ATTRIBUTES",
    "TOPIC_ATTRIBUTES",
    "Attribute",
    "altered_attributes",
    "parse_attribute_changes",
    "unserved_attributes",
]

_INT64_MAX: Final = 2**63 - 1
_LAYOUT: Final = r"[^:;]+:[1-9]\d*(;[^:;]+:[1-9]\d*)*"


@dataclass(frozen=True, slots=True)
class Attribute:
    """The values of an attribute: one of `choices`, a text that fits `pattern`, or else a number
    from `minimum` to `maximum`."""

    is_changeable: bool = True
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    pattern: str = ""
    default: str = ""
    """Where only one value is served: that value, which asks for what happens anyway."""
    missing: str = ""
    """Why no other value is served; empty where all are."""

    def check(self, value: str) -> None:
        """Check the form of a value.

        Raises:
            ConfigError: it is not a choice, does not fit the pattern, or is outside the range.
        """
        if self.choices:
            if value not in self.choices:
                raise ConfigError(f"value is not in set: [{', '.join(self.choices)}]")
            return
        if self.pattern:
            if re.fullmatch(self.pattern, value) is None:
                raise ConfigError(f"value is not of the form {self.pattern}: {value:.80}")
            return
        digits = value[1:] if value[:1] in ("+", "-") else value
        if not (digits.isascii() and digits.isdigit()):
            raise ConfigError(f'For input string: "{value}"')
        if not self.minimum <= int(value) <= self.maximum:
            raise ConfigError(f"value is not in range({self.minimum}, {self.maximum})")


TOPIC_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "queue.type": Attribute(
        False,
        ("BatchCQ", "SimpleCQ"),
        default="SimpleCQ",
        missing="batch consume queues are not part of this version",
    ),
    "cleanup.policy": Attribute(
        False,
        ("DELETE", "COMPACTION"),
        default="DELETE",
        missing="compaction is not part of this version, so no key would replace an older one",
    ),
    "message.type": Attribute(
        choices=("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "NORMAL")
    ),
    "reserve.time": Attribute(
        minimum=-1,
        maximum=_INT64_MAX,
        default="-1",
        missing="all topics are kept equally long here; set fileReservedTime of the broker",
    ),
    "group.epoch": Attribute(minimum=1, maximum=_INT64_MAX),
    "group.phase": Attribute(choices=("prepared", "moving", "closing", "complete")),
    "group.layout.old": Attribute(pattern=_LAYOUT),
    "group.layout": Attribute(pattern=_LAYOUT),
    "group.away": Attribute(choices=("wait", "move")),
    "group.moved": Attribute(pattern=r"\d+:[*0-9a-f]+(;\d+:[*0-9a-f]+)*"),
}
"""In the order in which Java lists the choices; those of ``group.`` are ours (core.growing)."""
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(
        minimum=0,
        maximum=100,
        default="100",
        missing="pop consumption, which it steers, is not part of this version",
    ),
    "subscription.strict": Attribute(choices=("true", "false")),
    "backlog.drop.age.ms": Attribute(minimum=1_000, maximum=_INT64_MAX),
    "backlog.drop.lag": Attribute(minimum=1, maximum=_INT64_MAX),
    "backlog.fresh.share": Attribute(minimum=1, maximum=99),
    "backlog.fresh.lag": Attribute(minimum=1, maximum=_INT64_MAX),
}
"""Those of ``backlog.`` are ours (core.group.backlog_rules)."""


def parse_attribute_changes(text: str | None) -> dict[str, str]:
    """Parse ``+name=value,-name``; keys keep their sign, a deletion has an empty value.

    Raises:
        ConfigError: an item has another form, or a key appears twice.
    """
    changes: dict[str, str] = {}
    for item in (text or "").split(",") if text else ():
        key, separator, value = item.partition("=")
        if separator and "+" not in key:
            raise ConfigError(f"add/alter attribute format is wrong: {key}")
        if not separator and "-" not in key:
            raise ConfigError(f"delete attribute format is wrong: {key}")
        if key in changes:
            raise ConfigError(f"key duplication: {key}")
        changes[key] = value.partition("=")[0]
    return changes


def altered_attributes(
    rules: Mapping[str, Attribute],
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    is_new: bool,
) -> dict[str, str]:
    """Apply changes with signed keys to the attributes of a topic or group.

    Raises:
        ConfigError: a key or value is not accepted, or asks for a feature that does not exist here.
    """
    result = dict(current)
    seen: set[str] = set()
    for signed, value in changes.items():
        sign, key = signed[:1], signed[1:]
        if not key or "+" in key or "-" in key:
            raise ConfigError("kv string format wrong.")
        if key in seen:
            raise ConfigError(f"alter duplication key. key: {key}")
        seen.add(key)
        if is_new and sign != "+":
            raise ConfigError(f"only add attribute is supported while creating topic. key: {key}")
        if sign not in ("+", "-"):
            raise ConfigError(f"wrong format key: {key}")
        if sign == "-" and key not in current:
            raise ConfigError(f"attempt to delete a nonexistent key: {key}")
        attribute = rules.get(key)
        if attribute is None:
            raise ConfigError(f"unsupported key: {key}")
        if not is_new and not attribute.is_changeable:
            raise ConfigError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            del result[key]
        else:
            attribute.check(value)
            if attribute.missing and value != attribute.default:
                raise ConfigError(f"{key}={value} cannot be served: {attribute.missing}")
            result[key] = value
    return result


def unserved_attributes(rules: Mapping[str, Attribute], current: Mapping[str, str]) -> list[str]:
    """The attributes, as ``name=value``, that ask for a feature this version does not have."""
    return [
        f"{key}={value}"
        for key, value in current.items()
        if key in rules and rules[key].missing and value != rules[key].default
    ]
