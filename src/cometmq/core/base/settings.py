"""Settings by RocketMQ's names: from the bytes of a file to checked values for a struct's fields.

Broker and name server read their configuration with it.  It knows no key, opens no file and reads
no environment.

Four kinds of keys exist.  *Effective* keys are the fields of the struct.  *Ignored* keys are known
to RocketMQ and accepted without effect.  *Demands* ask for something this version does not have:
only the values that ask for nothing are accepted.  Any other key is refused with the nearest name.
"""

import difflib
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    Literal,
    NamedTuple,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from cometmq.codec.java_properties import parse_properties
from cometmq.errors import ConfigError

__all__ = [
    "TLS_DEMANDS",
    "TLS_FILE_KEY",
    "CheckedSettings",
    "Demand",
    "SettingTable",
    "accepted_values",
    "parse_settings",
    "setting_text",
    "unknown_key",
    "values_of",
    "with_tls_file",
]

NEAR: Final = 0.6


def parse_settings(data: bytes, path: str) -> dict[str, Any]:
    """The keys and values of a configuration file.

    A file whose name ends in ``.toml`` is TOML, and the keys of its tables count as if they stood
    on the top level.  Any other file has Java properties.

    Raises:
        ConfigError: the file is not UTF-8 text, or not TOML.
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
    """A value in the form of properties files."""
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


def unknown_key(key: str, wanted: str, keys: Iterable[str]) -> str:
    """The error text for an unknown key; names like ``wanted`` are proposed, case ignored."""
    by_lower = {key.lower(): key for key in keys}
    near = difflib.get_close_matches(wanted.lower(), sorted(by_lower), n=1, cutoff=NEAR)
    hint = f"; did you mean {by_lower[near[0]]}?" if near else ""
    return f"unknown configuration key {key}{hint}"


class Demand(NamedTuple):
    """A key by which a configuration may ask for something this version does not have."""

    accepted: tuple[str, ...]
    """The values that ask for nothing, in lower case."""
    missing: str
    """What is not there, and why the server does not start without it."""
    remedy: str
    """What the operator can do."""
    is_protection: bool = False
    """It keeps somebody out; an operator may start without it (``--insecure``)."""
    value: str = ""
    """What holds here, for keys that RocketMQ's servers list beside their other settings."""


def values_of(demands: Mapping[str, Demand]) -> dict[str, str]:
    """The value that holds for each demand, as RocketMQ's servers list it."""
    return {key: demand.value for key, demand in demands.items() if demand.value}


TLS_FILE_KEY: Final = "tls.config.file"
TLS_DEMANDS: Final[Mapping[str, Demand]] = {
    "tls.test.mode.enable": Demand(
        ("", "false"),
        "a certificate that a server makes at its start protects from nobody",
        "set false, and tls.server.certPath and tls.server.keyPath to PEM files of your own",
        True,
    ),
    **{
        key: Demand(("",), "the system's choice holds", "leave it out")
        for key in ("tls.ciphers", "tls.protocols")
    },
}
"""What RocketMQ's TLS has and ours has not, on broker and name server alike."""


def with_tls_file(
    merged: dict[str, tuple[str, Any]], read: Callable[[str], Mapping[str, Any]]
) -> dict[str, tuple[str, Any]]:
    """Let the settings of the file that ``tls.config.file`` names win, as RocketMQ does.

    Raises:
        ConfigError: the file has a key of something else.
    """
    _, named = merged.pop(TLS_FILE_KEY, ("", ""))
    path = str(named).strip()
    if not path:
        return merged
    settings = read(path)
    for key in settings:
        if not key.startswith("tls.") or key == TLS_FILE_KEY:
            raise ConfigError(f"{key} (from {path}) is no key of TLS; write it into the main file")
    return merged | {key: (path, value) for key, value in settings.items()}


class CheckedSettings(NamedTuple):
    """The result of `SettingTable.check`."""

    values: dict[str, Any]
    """Effective keys with their converted values."""
    ignored: dict[str, str]
    """Keys without effect, with the texts given for them."""
    unprotected: dict[str, str]
    """Demands for protection that the operator waived."""


class SettingTable:
    """The keys of a server.

    Args:
        struct: its fields, renamed to RocketMQ's spelling, are the effective keys.
        ignored: keys that RocketMQ knows and that are accepted without effect.
        demands: keys of which only some values can be served.
    """

    def __init__(
        self,
        struct: type[msgspec.Struct],
        ignored: Collection[str],
        demands: Mapping[str, Demand],
    ) -> None:
        self.field_of_key: dict[str, str] = dict(
            zip(struct.__struct_encode_fields__, struct.__struct_fields__, strict=True)
        )
        self._kinds = get_type_hints(struct, include_extras=True)
        self._ignored = frozenset(ignored) - self.field_of_key.keys() - demands.keys()
        self.demands = demands

    def ignored(self) -> tuple[str, ...]:
        """The keys that are accepted without effect, sorted."""
        return tuple(sorted(self._ignored, key=str.lower))

    def all_keys(self) -> list[str]:
        """Every key that is not refused as unknown."""
        return [*self._ignored, *self.demands, *self.field_of_key]

    def accepted(self, key: str) -> str:
        """A description of the values that an effective key accepts."""
        return accepted_values(self._kinds[self.field_of_key[key]])

    def texts(self, config: msgspec.Struct) -> dict[str, str]:
        """The value of every effective key as text; passwords are left out."""
        return {
            key: setting_text(getattr(config, field))
            for key, field in self.field_of_key.items()
            if not field.endswith("_password")
        }

    def check(
        self, merged: Mapping[str, tuple[str, Any]], *, is_insecure: bool = False
    ) -> CheckedSettings:
        """Convert the values of effective keys and sort out the other keys.

        Args:
            merged: key to (where it comes from, value).
            is_insecure: accept demands for protection, and list them.

        Raises:
            ConfigError: an unknown key, a value out of its range, or a demand.
        """
        checked = CheckedSettings({}, {}, {})
        for key, (source, value) in merged.items():
            if key in self.field_of_key:
                checked.values[key] = self._convert(key, value, source)
            elif key in self.demands:
                demand, text = self.demands[key], setting_text(value)
                if text.strip().lower() in demand.accepted:
                    continue
                if not (is_insecure and demand.is_protection):
                    raise ConfigError(_unmet(key, text, source, demand))
                checked.unprotected[key] = text
            elif key in self._ignored:
                checked.ignored[key] = setting_text(value)
            else:
                raise ConfigError(f"{unknown_key(key, key, self.all_keys())} (from {source})")
        return checked

    def _convert(self, key: str, value: Any, source: str) -> Any:
        try:
            return msgspec.convert(value, self._kinds[self.field_of_key[key]], strict=False)
        except msgspec.ValidationError:
            raise ConfigError(
                f"{key}={setting_text(value)} ({source}) is not accepted: expected "
                f"{self.accepted(key)}"
            ) from None


def _unmet(key: str, text: str, source: str, demand: Demand) -> str:
    waiver = ", or start with --insecure" if demand.is_protection else ""
    return f"{key}={text} ({source}) cannot be served: {demand.missing}; {demand.remedy}{waiver}"
