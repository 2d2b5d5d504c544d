"""Attributes of topics and groups: which there are, and how a change is applied.

Job: take ``+name=value`` and ``-name`` apart, check names and values, and give the new attributes.
It must not know topics or groups.

Refusals say what RocketMQ says, word by word, since tools show it.
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
]

_INT64_MAX: Final = 2**63 - 1
_LAYOUT: Final = r"[^:;]+:[1-9]\d*(;[^:;]+:[1-9]\d*)*"


@dataclass(frozen=True, slots=True)
class Attribute:
    """What an attribute may be: one of `choices`, or what fits `pattern`, or else a number of
    `minimum` to `maximum`."""

    is_changeable: bool = True
    choices: tuple[str, ...] = ()
    minimum: int = 0
    maximum: int = 0
    pattern: str = ""

    def check(self, value: str) -> None:
        """Raise ConfigError for a value that is none of them."""
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
    "queue.type": Attribute(False, ("BatchCQ", "SimpleCQ")),
    "cleanup.policy": Attribute(False, ("DELETE", "COMPACTION")),
    "message.type": Attribute(
        choices=("UNSPECIFIED", "MIXED", "TRANSACTION", "PRIORITY", "FIFO", "DELAY", "NORMAL")
    ),
    "reserve.time": Attribute(minimum=-1, maximum=_INT64_MAX),
    "group.epoch": Attribute(minimum=1, maximum=_INT64_MAX),
    "group.phase": Attribute(choices=("prepared", "moving", "closing")),
    "group.layout.old": Attribute(pattern=_LAYOUT),
    "group.layout": Attribute(pattern=_LAYOUT),
    "group.moved": Attribute(pattern=r"\d+:[*0-9a-f]+(;\d+:[*0-9a-f]+)*"),
}
"""In the order in which Java lists the choices; those of ``group.`` are ours (core.growing)."""
GROUP_ATTRIBUTES: Final[Mapping[str, Attribute]] = {
    "priority.factor": Attribute(minimum=0, maximum=100)
}


def parse_attribute_changes(text: str | None) -> dict[str, str]:
    """Take ``+name=value,-name`` apart; keys keep their sign, a deletion has an empty value.

    Raises:
        ConfigError: an item of another form, or a key that comes twice.
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
    known: Mapping[str, Attribute],
    current: Mapping[str, str],
    changes: Mapping[str, str],
    *,
    is_new: bool,
) -> dict[str, str]:
    """Apply changes with signed keys to the attributes of something, or of something new.

    Raises:
        ConfigError: a key or a value that is refused; nothing is changed then.
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
        attribute = known.get(key)
        if attribute is None:
            raise ConfigError(f"unsupported key: {key}")
        if not is_new and not attribute.is_changeable:
            raise ConfigError(f"attempt to update an unchangeable attribute. key: {key}")
        if sign == "-":
            del result[key]
        else:
            attribute.check(value)
            result[key] = value
    return result
