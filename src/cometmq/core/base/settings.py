"""Settings by RocketMQ's names: from the bytes of a file to checked values for a struct's fields.

Job: what broker and name server have in common when they read a configuration: properties or
TOML, values converted and refused with key, value and accepted range, unknown keys refused with
the nearest name.
Must not: open files, look at the environment, or know any key.
"""

import difflib
import tomllib
from collections.abc import Collection, Iterable, Mapping
from typing import Annotated, Any, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from cometmq.codec.java_properties import parse_properties
from cometmq.errors import ConfigError

__all__ = [
    "SettingTable",
    "accepted_values",
    "parse_settings",
    "setting_text",
    "unknown_key",
]

NEAR: Final = 0.6


def parse_settings(data: bytes, path: str) -> dict[str, Any]:
    """The keys and values of a file: TOML, its tables laid flat, when its name ends in ``.toml``,
    else Java properties.

    Raises:
        ConfigError: no UTF-8 text, or no TOML.
    """
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"configuration file {path} is not UTF-8 text at byte {error.start}"
        ) from error
    if not path.endswith(".toml"):
        return dict(parse_properties(text))
    try:
        tables = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"configuration file {path} is not valid TOML: {error}") from error
    flat: dict[str, Any] = {}
    for key, value in tables.items():
        flat.update(value if isinstance(value, dict) else {key: value})
    return flat


def setting_text(value: Any) -> str:
    """A value as properties files have it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def accepted_values(kind: Any) -> str:
    """A field's type for a person: its kind and its range or choices."""
    if get_origin(kind) is Literal:
        return " | ".join(map(str, get_args(kind)))
    if get_origin(kind) is not Annotated:
        return {bool: "true | false", int: "a whole number", str: "text"}[kind]
    base, *metas = get_args(kind)
    for meta in metas:
        if not isinstance(meta, msgspec.Meta):
            continue
        if meta.ge is not None or meta.le is not None:
            return f"a whole number from {meta.ge} to {meta.le}"
        if meta.pattern is not None:
            length = f", 1-{meta.max_length} characters" if meta.max_length else ""
            return f"text matching {meta.pattern}{length}"
    return accepted_values(base)


def unknown_key(what: str, wanted: str, known: Iterable[str]) -> str:
    """What to say of a key nobody knows; ``wanted`` is what it is compared by, without case."""
    by_lower = {key.lower(): key for key in known}
    near = difflib.get_close_matches(wanted.lower(), sorted(by_lower), n=1, cutoff=NEAR)
    hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
    return f"unknown configuration key {what}{hint}"


class SettingTable:
    """The keys of a server: those of a struct's fields, and those without effect.

    Args:
        struct: its fields, renamed to RocketMQ's spelling.
        ignored: keys that RocketMQ knows and that are accepted without effect.
        refused: (key, value) that cannot be served, with the reason.
    """

    __slots__ = ("_ignored", "_kinds", "_refused", "field_of_key")

    def __init__(
        self,
        struct: type[msgspec.Struct],
        ignored: Collection[str],
        refused: Mapping[tuple[str, str], str],
    ) -> None:
        self.field_of_key: dict[str, str] = dict(
            zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
        )
        self._kinds = get_type_hints(struct, include_extras=True)
        self._ignored = ignored
        self._refused = refused

    def known(self) -> list[str]:
        """Every key that is not refused as unknown."""
        return [*self._ignored, *self.field_of_key]

    def accepted(self, key: str) -> str:
        """What an effective key accepts, as text."""
        return accepted_values(self._kinds[self.field_of_key[key]])

    def texts(self, config: msgspec.Struct) -> dict[str, str]:
        """The value of every effective key as text."""
        return {
            key: setting_text(getattr(config, field)) for key, field in self.field_of_key.items()
        }

    def check(self, merged: Mapping[str, tuple[str, Any]]) -> tuple[dict[str, Any], dict[str, str]]:
        """Converted values by key, and the texts of keys without effect.

        Args:
            merged: key to (where it comes from, value).

        Raises:
            ConfigError: an unknown key, or a value that is out of range or cannot be served.
        """
        values: dict[str, Any] = {}
        ignored: dict[str, str] = {}
        for key, (source, value) in merged.items():
            text = setting_text(value)
            reason = self._refused.get((key, text)) or self._refused.get((key, text.lower()))
            if reason is not None:
                raise ConfigError(f"{key}={text} ({source}) cannot be served: {reason}")
            if key in self.field_of_key:
                values[key] = self._convert(key, value, source)
            elif key in self._ignored:
                ignored[key] = text
            else:
                raise ConfigError(f"{unknown_key(key, key, self.known())} (from {source})")
        return values, ignored

    def _convert(self, key: str, value: Any, source: str) -> Any:
        try:
            return msgspec.convert(value, self._kinds[self.field_of_key[key]], strict=False)
        except msgspec.ValidationError:
            raise ConfigError(
                f"{key}={setting_text(value)} ({source}) is not accepted: expected "
                f"{self.accepted(key)}"
            ) from None
