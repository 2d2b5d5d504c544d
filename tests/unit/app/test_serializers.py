"""Serializers: each kind of value there and back, and the bodies that are refused."""

import dataclasses
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, TypedDict

import msgspec
import pydantic
import pytest
from google.protobuf import struct_pb2, wrappers_pb2

from cometmq.app.producing import message_of
from cometmq.app.serializers import (
    Avro,
    Json,
    SchemaError,
    Serializer,
    ValueReader,
    serializer_of,
)
from cometmq.errors import ConfigError


@dataclasses.dataclass
class Order:
    """A dataclass of the tests."""

    number: int
    customer: str = "nobody"


class Line(TypedDict):
    """A TypedDict of the tests."""

    count: int


class Point(msgspec.Struct):
    """A Struct of the tests."""

    x: int
    y: int = 0


class Model(pydantic.BaseModel):
    """A Pydantic model of the tests."""

    number: int
    at: datetime | None = None


SCHEMA = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "number", "type": "long"},
        {"name": "customer", "type": "string", "default": "nobody"},
    ],
}
NOON = datetime(2026, 11, 24, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "body", "content_type"),
    [
        (bytes, b"\x00\xff", b"\x00\xff", None),
        (bytearray, bytearray(b"ab"), b"ab", None),
        (str, "größer", "größer".encode(), "text/plain; charset=utf-8"),
        (int, 7, b"7", "application/json"),
        (dict[str, int], {"a": 1}, b'{"a":1}', "application/json"),
        (list[Order], [Order(1, "b")], b'[{"number":1,"customer":"b"}]', "application/json"),
        (Order | None, None, b"null", "application/json"),
        (Line, {"count": 2}, b'{"count":2}', "application/json"),
        (Point, Point(1), b'{"x":1,"y":0}', "application/json"),
        (Model, Model(number=1, at=NOON), None, "application/json"),
        (list[Model], [Model(number=1)], b'[{"number":1,"at":null}]', "application/json"),
        (Any, {"a": [1, 2]}, b'{"a":[1,2]}', "application/json"),
        (
            wrappers_pb2.StringValue,
            wrappers_pb2.StringValue(value="hi"),
            b"\n\x02hi",
            "application/x-protobuf",
        ),
    ],
    ids=str,
)
def test_the_type_chooses(kind: Any, value: Any, body: bytes | None, content_type: str) -> None:
    """A value becomes the message's body with its content type, and the same value again."""
    message = message_of("t", value, None, {"properties": {"own": "1"}})
    if body is not None:
        assert message.body == body
    expected = {"own": "1"} if content_type is None else {"own": "1", "content-type": content_type}
    assert message.properties == expected
    again = ValueReader(None, kind).read(message.body)
    assert again == value
    assert type(again) is type(value)


@pytest.mark.parametrize(
    ("kind", "body", "text"),
    [
        (str, b"\xff", "no str: UnicodeDecodeError"),
        (Order, b"", "a body of 0 bytes is no Order: DecodeError: Input data was truncated"),
        (Order, b"{}", "Object missing required field `number`"),
        (Order, b'{"number": "1"}', "Expected `int`, got `str` - at `$.number`"),
        (Model, b'{"number": "one"}', "is no Model: ValidationError: 1 validation error"),
        (list[Model], b"{}", "Input should be a valid array"),
        (wrappers_pb2.StringValue, b"\n\x09hi", "is no StringValue: DecodeError"),
    ],
)
def test_a_body_that_is_no_such_value(kind: Any, body: bytes, text: str) -> None:
    """The error names type and cause, on one line that fits a property."""
    with pytest.raises(SchemaError) as error:
        ValueReader(None, kind).read(body)
    assert text in str(error.value)
    assert error.value.properties["error"] == f"SchemaError: {error.value}"
    assert "\n" not in str(error.value)
    assert len(str(SchemaError("long " * 10_000))) == 1_000


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (Order, Order(7, "ann")),
        (dict, {"number": 7, "customer": "ann"}),
        (Any, {"number": 7, "customer": "ann"}),
    ],
)
def test_avro(kind: Any, value: Any) -> None:
    """The bytes of Avro's specification: a zigzag varint, then a length and the text."""
    avro = Avro(SCHEMA)
    assert avro.encode(value) == b"\x0e\x06ann"
    assert ValueReader(avro, kind).read(b"\x0e\x06ann") == value


def test_avro_of_other_kinds() -> None:
    """A Pydantic model, and logical types, which fastavro reads itself."""
    fields = [
        {"name": "number", "type": "long"},
        {"name": "at", "type": ["null", {"type": "long", "logicalType": "timestamp-millis"}]},
    ]
    avro = Avro({"type": "record", "name": "M", "fields": fields})
    value = Model(number=3, at=NOON)
    assert avro.decoder(Model)(avro.encode(value)) == value

    @dataclasses.dataclass
    class Timed:
        number: int
        at: datetime | None

    assert avro.decoder(Timed)(avro.encode(Timed(3, NOON))) == Timed(3, NOON)


@pytest.mark.parametrize("body", [b"", b"\x0e", b"\x0e\x06an", b"\x0e\x06ann!"])
def test_avro_refuses(body: bytes) -> None:
    """Bytes that are missing, and bytes that follow."""
    with pytest.raises(SchemaError, match="is no Order"):
        ValueReader(Avro(SCHEMA), Order).read(body)


def test_a_missing_extra_prints_its_install_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the program makes the serializer, not at the first message."""
    monkeypatch.setattr("cometmq.extras.find_spec", lambda module: None)
    monkeypatch.delitem(sys.modules, "fastavro", raising=False)
    with pytest.raises(ConfigError) as error:
        Avro(SCHEMA)
    text = "a serializer for Avro needs fastavro: pip install 'cometmq[avro]'"
    assert str(error.value) == text


def test_nothing_optional_is_imported() -> None:
    """Plain values need neither Pydantic nor the extras."""
    names = ("pydantic", "fastavro", "google.protobuf")
    script = "import sys, cometmq; cometmq.App('g').consumer('t')(lambda body: None)\n"
    script += f"assert not [name for name in {names} if name in sys.modules]"
    import subprocess

    subprocess.run([sys.executable, "-c", script], check=True, timeout=50)


def test_a_program_may_bring_its_own() -> None:
    """An object with a content type and two methods."""

    class Reversed:
        content_type: str | None = "x/reversed"

        def encode(self, value: Any) -> bytes:
            return bytes(reversed(value))

        def decoder(self, kind: Any) -> Callable[[bytes], Any]:
            return self.encode

    own: Serializer = Reversed()
    message = message_of("t", b"abc", own, {})
    assert (message.body, message.properties["content-type"]) == (b"cba", "x/reversed")
    assert ValueReader(own, bytes).read(b"cba") == b"abc"


def test_a_value_without_a_form_is_refused_at_the_send() -> None:
    """JSON has no form for an object of any class; nor has a struct of Protobuf a dict's."""
    with pytest.raises(TypeError, match="a value of object has no JSON form"):
        message_of("t", [object()], None, {})
    assert isinstance(serializer_of(dict), Json)
    assert serializer_of(struct_pb2.Struct).content_type == "application/x-protobuf"
