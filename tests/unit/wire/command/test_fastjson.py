"""fastjson's forms: bare keys, objects as keys, compact output."""

import json

import pytest

from cometmq.errors import CodecError, LocalProtocolError
from cometmq.model.queue import MessageQueue
from cometmq.wire.command.fastjson import (
    dumps,
    loads_lenient,
    loads_object,
    queue_from_json,
    queue_to_json,
)

QUEUE = MessageQueue("t", "b", 0)
QUEUE_JSON = b'{"brokerName":"b","queueId":0,"topic":"t"}'


def test_queue_keys_are_bare_objects() -> None:
    """The only form that old Java and Go both take (T2)."""
    table = {"offsetTable": {QUEUE: 5, MessageQueue("t", "b", 1): 6}}
    raw = dumps(table)
    assert raw == (
        b'{"offsetTable":{{"brokerName":"b","queueId":0,"topic":"t"}:5,'
        b'{"brokerName":"b","queueId":1,"topic":"t"}:6}}'
    )
    assert loads_lenient(raw) == table


def test_escaped_queue_keys_are_read() -> None:
    """The standard alternative, which newer peers may send."""
    raw = json.dumps({"offsetTable": {QUEUE_JSON.decode(): 5}}).encode()
    (key,) = loads_lenient(raw)["offsetTable"]
    assert queue_from_json(key) == QUEUE


def test_integer_keys_are_read_bare_and_quoted() -> None:
    """Java writes them bare."""
    expected = {"brokerAddrs": {"0": "h:1", "-1": "h:2"}}
    assert loads_lenient(b'{"brokerAddrs":{0:"h:1",-1:"h:2"}}') == expected
    assert loads_lenient(b'{"brokerAddrs":{"0":"h:1","-1":"h:2"}}') == expected


def test_integer_keys_are_written_bare_and_text_quoted() -> None:
    """The caller chooses by the type of the key."""
    assert dumps({"a": {0: "x"}}) == b'{"a":{0:"x"}}'
    assert dumps({"a": {"0": "x"}}) == b'{"a":{"0":"x"}}'


def test_output_is_compact() -> None:
    """A blank ends up in an address at Go (T1)."""
    raw = dumps({"a": [1, {"b": "x y"}], "c": {QUEUE: {"d": [True, None, 1.5]}}})
    assert b" " not in raw.replace(b"x y", b"")
    assert b"\n" not in raw


@pytest.mark.parametrize(
    ("raw", "expected"),
    [
        (b' { 0 : [ 1 , -2.5e3 , true , false , null , "x" ] , "a" : { } } ', None),
        (b"{0:[],1:{}}", {"0": [], "1": {}}),
        (b'{0:"a\x01b\tc"}', {"0": "a\x01b\tc"}),
        (b'{0:"\\u6807\\ud83d\\ude00"}', {"0": "标😀"}),
        (b'{0:"\xff"}', {"0": "\ufffd"}),
        (b"{0:1,0:2}", {"0": 2}),
        (b"[{0:1}]", [{"0": 1}]),
    ],
)
def test_forms_beyond_the_standard(raw: bytes, expected: object) -> None:
    """Blanks anywhere, raw control characters, any value."""
    if expected is None:
        expected = {"0": [1, -2500.0, True, False, None, "x"], "a": {}}
    assert loads_lenient(raw) == expected


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"   ",
        b"{",
        b"[",
        b"{0",
        b"{0:",
        b"{0:1",
        b"{0:1,",
        b"{0:1,}",
        b"[1,",
        b"[1,]",
        b"[1 2]",
        b"{0 1}",
        b"{0:1 2:3}",
        b"{x:1}",
        b"{1.5:1}",
        b"{1e5:1}",
        b'{"a',
        b'{0:"a\\q"}',
        b"{0:nul}",
        b"{0:01x}",
        b"{0:1}x",
        b"{0:1}{",
        b"{{}:1}",
        b'{{"topic":"t"}:1}',
        b'{{"brokerName":"b","queueId":"0","topic":"t"}:1}',
        b'{{"brokerName":"b","queueId":true,"topic":"t"}:1}',
        b"{[]:1}",
        b"[" * 100_000,
        b"{0:" * 100_000,
        b"{0:" + b"[" * 100 + b"]" * 100 + b"}",
        b"{{{{" * 50_000,
        b"-",
        b"{0:" + b"1" * 500 + b"}",
    ],
)
def test_broken_bodies_are_refused(raw: bytes) -> None:
    """One kind of error, whatever the input and however deep."""
    with pytest.raises(CodecError):
        loads_lenient(raw)


def test_refusals_name_the_body() -> None:
    """So that a log line says which of a request's parts is bad."""
    with pytest.raises(CodecError, match="HeartbeatData: a JSON body has 'x'"):
        loads_object(b"x", "HeartbeatData")
    with pytest.raises(CodecError, match="HeartbeatData: expected a JSON object, got list"):
        loads_object(b"[]", "HeartbeatData")


def test_queues_both_ways() -> None:
    """From an object, from text, from itself."""
    assert queue_to_json(QUEUE) == json.loads(QUEUE_JSON)
    assert queue_from_json(json.loads(QUEUE_JSON)) == QUEUE
    assert queue_from_json(QUEUE) is QUEUE
    wrongs: list[object] = [None, 5, "x", [], {}, {"topic": 1, "brokerName": "b", "queueId": 0}]
    for wrong in wrongs:
        with pytest.raises(CodecError, match="no message queue"):
            queue_from_json(wrong)


def test_half_surrogates_are_not_written() -> None:
    """Neither plain nor with bare keys."""
    for value in ({"a": "\ud800"}, {0: "\ud800"}, {MessageQueue("\ud800", "b", 0): 1}):
        with pytest.raises(LocalProtocolError):
            dumps(value)
