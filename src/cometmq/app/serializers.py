"""Serializers: how a value becomes a body, and a body the value that a handler asks for.

The type chooses: bytes and texts as they are, Protobuf classes by Protobuf, everything else as
JSON.  msgspec reads and checks JSON for dataclasses, TypedDicts and Structs, Pydantic for its
models.  Avro needs a schema, so a program names it: ``Avro(schema)``.
"""

import functools
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any, Final, Protocol, get_args
from uuid import UUID

import msgspec

from cometmq.client import DeadLetter
from cometmq.extras import require

__all__ = [
    "CONTENT_TYPE",
    "RAW",
    "Avro",
    "Decode",
    "Json",
    "Protobuf",
    "Raw",
    "SchemaError",
    "Serializer",
    "Text",
    "ValueReader",
    "serializer_of",
]

CONTENT_TYPE: Final = "content-type"
"""The message property with the serializer's content type."""
REASON_LENGTH_MAX: Final = 1_000
"""Characters of an error's text in a property; all properties of a message share 32 KiB."""

Decode = Callable[[bytes], Any]


class SchemaError(DeadLetter):
    """A body is not the value that the handler asks for; another try would fail in the same way.

    The message becomes a dead letter at once, with the text in its property ``error``.
    """

    def __init__(self, reason: str) -> None:
        text = " ".join(reason.split())[:REASON_LENGTH_MAX]
        super().__init__(text, properties={"error": f"SchemaError: {text}"})


class Serializer(Protocol):
    """Turns values into bodies and back; a program may bring its own."""

    content_type: str | None
    """Travels as the property ``content-type``; None for none."""

    def encode(self, value: Any) -> bytes:
        """The body for a value."""
        ...

    def decoder(self, kind: Any) -> Decode:
        """A function that reads a body as this type; any exception of it is a `SchemaError`."""
        ...


class Raw:
    """Bytes as they are."""

    content_type: str | None = None

    def encode(self, value: Any) -> bytes:
        """The value itself."""
        return bytes(value)

    def decoder(self, kind: Any) -> Decode:
        """The type itself, or the bytes where it is `bytes`."""
        return _itself if kind is bytes else kind


class Text:
    """Texts as UTF-8."""

    content_type: str | None = "text/plain; charset=utf-8"

    def encode(self, value: Any) -> bytes:
        """The text's bytes."""
        return str(value).encode()

    def decoder(self, kind: Any) -> Decode:
        """Decodes UTF-8."""
        return _text


class Json:
    """JSON by msgspec; by Pydantic for types that mention one of its models."""

    content_type: str | None = "application/json"

    def encode(self, value: Any) -> bytes:
        """The JSON text of builtins, dataclasses, Structs, TypedDicts and Pydantic models.

        Raises:
            TypeError: the value contains something that JSON has no form for.
        """
        return _JSON.encode(value)

    def decoder(self, kind: Any) -> Decode:
        """Reads and checks the type's JSON."""
        if _mentions_model(kind):
            from pydantic import TypeAdapter

            model: Decode = TypeAdapter(kind).validate_json
            return model
        return msgspec.json.Decoder(kind).decode


class Protobuf:
    """Classes that protoc has generated."""

    content_type: str | None = "application/x-protobuf"

    def encode(self, value: Any) -> bytes:
        """The message's wire form."""
        body: bytes = value.SerializeToString()
        return body

    def decoder(self, kind: Any) -> Decode:
        """The class's own parser."""
        decode: Decode = kind.FromString
        return decode


class Avro:
    """Avro by one schema, without the container file's header; needs the extra ``avro``.

    Args:
        schema: as parsed from its JSON.

    Raises:
        ConfigError: fastavro is not installed; the text has the line that installs it.
    """

    content_type: str | None = "avro/binary"

    def __init__(self, schema: Mapping[str, Any]) -> None:
        require("avro", "a serializer for Avro")
        from fastavro import parse_schema

        self._schema = parse_schema(dict(schema))

    def encode(self, value: Any) -> bytes:
        """The binary form of a mapping, dataclass, Struct or Pydantic model.

        Raises:
            ValueError: the value does not fit the schema.
        """
        from io import BytesIO

        from fastavro import schemaless_writer

        out = BytesIO()
        schemaless_writer(out, self._schema, _fields(value), strict=True)
        return out.getvalue()

    def decoder(self, kind: Any) -> Decode:
        """Reads the binary form, then builds the type from its fields."""
        from io import BytesIO

        from fastavro import schemaless_reader

        schema = self._schema
        build = _builder(kind)

        def decode(body: bytes) -> Any:
            source = BytesIO(body)
            value = schemaless_reader(source, schema, None)
            if source.tell() != len(body):
                raise ValueError(f"{len(body) - source.tell()} bytes follow the value")
            return build(value)

        return decode


RAW: Final = Raw()
_AVRO_TYPES: Final = (bytes, datetime, date, time, Decimal, UUID)
"""Types that fastavro reads and writes itself, by the schema's logical types."""
_TEXT: Final = Text()
_PROTOBUF: Final = Protobuf()


def _plain(value: Any) -> Any:
    """For msgspec: what it does not know itself."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"a value of {type(value).__name__} has no JSON form")
    return dump(mode="json")


_JSON: Final = msgspec.json.Encoder(enc_hook=_plain)
_JSON_SERIALIZER: Final = Json()


def serializer_of(kind: Any) -> Serializer:
    """The serializer that a type asks for."""
    if kind in (bytes, bytearray, memoryview):
        return RAW
    if kind is str:
        return _TEXT
    if hasattr(kind, "FromString") and hasattr(kind, "DESCRIPTOR"):
        return _PROTOBUF
    return _JSON_SERIALIZER


class ValueReader:
    """Reads bodies as one type."""

    def __init__(self, serializer: Serializer | None, kind: Any) -> None:
        self.decode = (serializer or serializer_of(kind)).decoder(kind)
        self.name = getattr(kind, "__name__", str(kind))

    def read(self, body: bytes) -> Any:
        """The value of a body.

        Raises:
            SchemaError: it is none; the text names the cause.
        """
        try:
            return self.decode(body)
        except Exception as error:
            raise self.refused(body, error) from error

    def refused(self, body: bytes, error: Exception) -> SchemaError:
        """The error for a body that `decode` could not read."""
        return SchemaError(
            f"a body of {len(body)} bytes is no {self.name}: {type(error).__name__}: {error}"
        )


def _itself(body: bytes) -> bytes:
    return body


def _text(body: bytes) -> str:
    return body.decode()


def _is_model(kind: Any) -> bool:
    """Whether the type is a Pydantic model; Pydantic itself need not be installed."""
    return isinstance(kind, type) and hasattr(kind, "model_validate_json")


def _mentions_model(kind: Any) -> bool:
    return _is_model(kind) or any(map(_mentions_model, get_args(kind)))


def _fields(value: Any) -> Any:
    """What fastavro writes, from whatever kind of object has the fields."""
    if _is_model(type(value)):
        return value.model_dump()
    return msgspec.to_builtins(value, builtin_types=_AVRO_TYPES)


def _builder(kind: Any) -> Callable[[Any], Any]:
    if _mentions_model(kind):
        from pydantic import TypeAdapter

        validate: Callable[[Any], Any] = TypeAdapter(kind).validate_python
        return validate
    if kind is Any or kind is dict:
        return lambda value: value
    return functools.partial(msgspec.convert, type=kind, builtin_types=_AVRO_TYPES)
