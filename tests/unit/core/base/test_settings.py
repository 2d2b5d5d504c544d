"""Settings: files, conversion, demands, and what is said of a wrong key or value."""

from typing import Annotated, Any, Literal

import msgspec
import pytest

from cometmq.core.base.settings import (
    Demand,
    SettingTable,
    accepted_values,
    parse_settings,
)
from cometmq.errors import ConfigError

Port = Annotated[int, msgspec.Meta(ge=0, le=65535)]
Name = Annotated[str, msgspec.Meta(pattern="[a-z]+", max_length=8)]


class Config(msgspec.Struct, rename={"listen_port": "listenPort", "is_open": "isOpen"}):
    """A server's settings."""

    listen_port: Port = 9876
    name: str = "a"
    is_open: bool = True


TABLE = SettingTable(
    Config,
    ("oldKey", "name"),
    {
        "role": Demand(("", "master"), "there is no replication", "leave it out"),
        "acl": Demand(("", "false"), "there is no access control", "set false", True),
    },
)


def test_a_properties_file_and_a_toml_file() -> None:
    """The name's end decides; TOML's tables are laid flat."""
    assert parse_settings(b"a=1\n", "x.conf") == {"a": "1"}
    assert parse_settings(b"a = 1\n[t]\nb = true\n", "x.toml") == {"a": 1, "b": True}


@pytest.mark.parametrize(
    ("data", "path", "text"),
    [(b"a=\xff", "x.conf", "not UTF-8 text at byte 2"), (b"a = ", "x.toml", "not valid TOML")],
)
def test_a_file_that_cannot_be_read(data: bytes, path: str, text: str) -> None:
    """The error names the file and what is wrong."""
    with pytest.raises(ConfigError, match=rf"{path}.*{text}"):
        parse_settings(data, path)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (bool, "true | false"),
        (Literal["a", "b"], "a | b"),
        (Port, "a whole number from 0 to 65535"),
        (Name, "text matching [a-z]+, 1-8 characters"),
        (Annotated[str, msgspec.Meta(pattern="x")], "text matching x"),
        (Annotated[int, "a note", msgspec.Meta(description="d")], "a whole number"),
    ],
)
def test_accepted_values(kind: Any, text: str) -> None:
    """A type in a person's words."""
    assert accepted_values(kind) == text


def test_check_sorts_the_keys() -> None:
    """Effective keys are converted, ignored ones listed, demands for nothing accepted."""
    checked = TABLE.check(
        {
            "listenPort": ("file", "1"),
            "name": ("file", "b"),
            "oldKey": ("file", True),
            "role": ("file", "MASTER"),
        }
    )
    assert checked == ({"listenPort": 1, "name": "b"}, {"oldKey": "true"}, {})
    assert TABLE.ignored() == ("oldKey",)
    assert TABLE.texts(Config(is_open=False)) == {
        "listenPort": "9876",
        "name": "a",
        "isOpen": "false",
    }


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("listenport", "1", "did you mean listenPort"),
        ("zzzzzz", "1", r"unknown configuration key zzzzzz \(from file\)"),
        ("listenPort", "x", "expected a whole number from 0 to 65535"),
        ("role", "slave", "there is no replication; leave it out$"),
        ("acl", "true", "set false, or start with --insecure"),
    ],
)
def test_refused_settings(key: str, value: str, text: str) -> None:
    """One sentence with key, value, source and what would be accepted."""
    with pytest.raises(ConfigError, match=text):
        TABLE.check({key: ("file", value)})


def test_insecure_waives_protection_only() -> None:
    """The operator may do without access control, not without replication."""
    assert TABLE.check({"acl": ("file", "true")}, is_insecure=True).unprotected == {"acl": "true"}
    with pytest.raises(ConfigError, match="there is no replication"):
        TABLE.check({"role": ("file", "slave")}, is_insecure=True)
