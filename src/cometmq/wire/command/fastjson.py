"""JSON as RocketMQ's fastjson writes it, which is not always JSON.

Three forms beyond the standard (docs/internals/protocol.md#json-bodies): a map keyed by integers
comes with bare keys, ``{0:"a"}``; a map keyed by message queues has bare objects as keys,
``{{"brokerName":"b","queueId":0,"topic":"t"}:5}``; and newer peers may write that object as an
escaped string. The reader takes all of them. The writer writes queue keys as bare objects, the only
form that all clients accept, and integer keys bare or, as their text, quoted. Output is always
compact: Go cuts tables out of the raw text and keeps any blank.

Every fault of the input is a CodecError naming the position.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.errors import CodecError, LocalProtocolError
from cometmq.model.queue import MessageQueue

__all__ = ["dumps", "loads_lenient", "loads_object", "queue_from_json", "queue_to_json"]

# Bodies of the protocol nest five deep; the limit keeps a hostile one off the C stack.
_DEPTH_MAX: Final = 64
_BLANK: Final = re.compile(r"[ \t\r\n]*")
_NUMBER: Final = re.compile(r"-?[0-9]{1,400}(\.[0-9]{1,400})?([eE][+-]?[0-9]{1,4})?")
_WORDS: Final[tuple[tuple[str, Any], ...]] = (("true", True), ("false", False), ("null", None))
# Control characters may stand in strings unescaped.
_scan_string = json.JSONDecoder(strict=False).raw_decode
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder().decode


def loads_lenient(raw: bytes) -> Any:
    """Return the value of a body.

    Keys are strings (of integers, their text), or MessageQueue in a map keyed by queues.

    Raises:
        CodecError: the body is not JSON as fastjson writes it.
    """
    try:
        return _decode(raw)
    except RecursionError:
        raise CodecError(f"a JSON body of {len(raw)} bytes nests too deeply") from None
    except (msgspec.MsgspecError, ValueError):
        pass
    text = raw.decode("utf-8", "replace")
    value, position = _value(text, _skip(text, 0), 0)
    if position != len(text):
        raise CodecError(f"a JSON body ends at character {position}, {len(text)} are there")
    return value


def loads_object(raw: bytes, body: str) -> dict[Any, Any]:
    """Return the object of a body; ``body`` names it in errors.

    Raises:
        CodecError: the body is something else.
    """
    try:
        value = loads_lenient(raw)
    except CodecError as error:
        raise CodecError(f"{body}: {error}") from None
    if not isinstance(value, dict):
        raise CodecError(f"{body}: expected a JSON object, got {type(value).__name__}")
    return value


def _skip(text: str, position: int) -> int:
    match = _BLANK.match(text, position)
    return match.end() if match else position


def _value(text: str, position: int, depth: int) -> tuple[Any, int]:
    """Return the value that starts here and where the blank after it ends."""
    if depth > _DEPTH_MAX:
        raise CodecError(f"a JSON body nests deeper than {_DEPTH_MAX} at character {position}")
    first = text[position : position + 1]
    if first == '"':
        return _string(text, position)
    if first == "{":
        return _object(text, position, depth)
    if first == "[":
        return _array(text, position, depth)
    match = _NUMBER.match(text, position)
    if match:
        literal = match[0]
        is_float = match[1] is not None or match[2] is not None
        return (float(literal) if is_float else int(literal)), _skip(text, match.end())
    for word, value in _WORDS:
        if text.startswith(word, position):
            return value, _skip(text, position + len(word))
    raise _unexpected(text, position, "a value")


def _unexpected(text: str, position: int, expected: str) -> CodecError:
    unexpected = repr(text[position : position + 20]) if position < len(text) else "the end"
    return CodecError(f"a JSON body has {unexpected} at character {position}, expected {expected}")


def _string(text: str, position: int) -> tuple[str, int]:
    try:
        value, end = _scan_string(text, position)
    except ValueError as error:
        raise CodecError(f"a JSON body has a broken string: {error}") from None
    return str(value), _skip(text, end)


def _array(text: str, position: int, depth: int) -> tuple[list[Any], int]:
    values: list[Any] = []
    position = _skip(text, position + 1)
    if text.startswith("]", position):
        return values, _skip(text, position + 1)
    while True:
        value, position = _value(text, position, depth + 1)
        values.append(value)
        mark = text[position : position + 1]
        if mark not in (",", "]"):
            raise _unexpected(text, position, "',' or ']'")
        position = _skip(text, position + 1)
        if mark == "]":
            return values, position


def _object(text: str, position: int, depth: int) -> tuple[dict[Any, Any], int]:
    values: dict[Any, Any] = {}
    position = _skip(text, position + 1)
    if text.startswith("}", position):
        return values, _skip(text, position + 1)
    while True:
        key, position = _key(text, position, depth)
        if not text.startswith(":", position):
            raise _unexpected(text, position, "':'")
        value, position = _value(text, _skip(text, position + 1), depth + 1)
        values[key] = value
        mark = text[position : position + 1]
        if mark not in (",", "}"):
            raise _unexpected(text, position, "',' or '}'")
        position = _skip(text, position + 1)
        if mark == "}":
            return values, position


def _key(text: str, position: int, depth: int) -> tuple[str | MessageQueue, int]:
    if text.startswith('"', position):
        return _string(text, position)
    if text.startswith("{", position):
        value, end = _value(text, position, depth + 1)
        return queue_from_json(value), end
    match = _NUMBER.match(text, position)
    if match and match[1] is None and match[2] is None:
        return match[0], _skip(text, match.end())
    raise _unexpected(text, position, "a key")


def queue_from_json(value: Any) -> MessageQueue:
    """Return the queue of a JSON object, of a text holding one, or of a key already read.

    Raises:
        CodecError: it is no queue.
    """
    if isinstance(value, MessageQueue):
        return value
    if isinstance(value, str) and value.startswith("{"):
        value = loads_lenient(value.encode("utf-8", "replace"))
    if isinstance(value, dict):
        topic, broker_name = value.get("topic"), value.get("brokerName")
        queue_id = value.get("queueId")
        is_number = isinstance(queue_id, int) and not isinstance(queue_id, bool)
        if isinstance(topic, str) and isinstance(broker_name, str) and is_number:
            return MessageQueue(topic, broker_name, int(str(queue_id)))
    raise CodecError(
        f"{value!r:.100} is no message queue; expected an object with topic, brokerName, queueId"
    )


def queue_to_json(queue: MessageQueue) -> dict[str, Any]:
    """Return the JSON object of a queue, keys in fastjson's order."""
    return {"brokerName": queue.broker_name, "queueId": queue.queue_id, "topic": queue.topic}


def dumps(value: Any) -> bytes:
    """Return a body as compact JSON; MessageQueue keys become bare objects, int keys bare numbers.

    Raises:
        LocalProtocolError: a text is not valid Unicode.
    """
    try:
        if _has_bare_keys(value):
            return _dump(value)
        return _encode(value)
    except UnicodeEncodeError as error:
        raise LocalProtocolError(f"a body is not valid Unicode: {error.reason}") from None


_SCALARS: Final = frozenset({str, int, bool, float, type(None)})


def _has_bare_keys(value: Any) -> bool:
    if isinstance(value, Mapping):
        for key, item in value.items():
            # Of ten thousand topics' fields nearly all end here, without another call.
            if not isinstance(key, str) or (type(item) not in _SCALARS and _has_bare_keys(item)):
                return True
    elif isinstance(value, list):
        for item in value:
            if _has_bare_keys(item):
                return True
    return False


def _dump(value: Any) -> bytes:
    if isinstance(value, Mapping):
        items = [_dump_key(key) + b":" + _dump(item) for key, item in value.items()]
        return b"{" + b",".join(items) + b"}"
    if isinstance(value, list):
        return b"[" + b",".join([_dump(item) for item in value]) + b"]"
    return _encode(value)


def _dump_key(key: Any) -> bytes:
    if isinstance(key, MessageQueue):
        return _encode(queue_to_json(key))
    return _encode(key)
