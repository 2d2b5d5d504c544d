"""Compares a captured answer with ours, after translation, field by field."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from tests.golden.replay.captures import Line
from tests.golden.replay.frames import Frame, loads_java, stored_messages
from tests.golden.replay.translate import Translation

__all__ = [
    "MESSAGE_MAGIC",
    "Difference",
    "compare",
    "place_of_send",
    "properties_of",
    "rewrite",
]

SENDS = {10, 310, 320, 324, 325}
PULLS = {11, 361}
RELAYED = {307, 309}
"""The answer is the called client's own, byte by byte."""
PUSH_REPLY = 326
MESSAGE_MAGIC = b"\xda\xa3\x20\xa7"
QUEUE_OFFSETS = {"nextBeginOffset", "minOffset", "maxOffset", "offset", "queueOffset"}
OFFSET_ID_PROPERTIES = {"ORIGIN_MESSAGE_ID", "DLQ_ORIGIN_MESSAGE_ID"}
DELAY_LEVEL_MAX = 18


@dataclass(frozen=True)
class Difference:
    """One field whose value differs from the captured one."""

    field: str
    captured: object
    ours: object

    def __str__(self) -> str:
        return f"{self.field}: captured {self.captured!r:.300}, ours {self.ours!r:.300}"


def place_of_send(frame: Frame) -> tuple[str, int]:
    """Return topic and queue of the offset in a send's answer; queue -1 means as answered."""
    ext = frame.ext
    topic = ext.get("b") or ext.get("topic") or ""
    queue_id = int(ext.get("e") or ext.get("queueId") or 0)
    properties = properties_of(frame)
    if properties.get("TRAN_MSG") == "true":
        return "RMQ_SYS_TRANS_HALF_TOPIC", 0
    level = int(properties.get("DELAY") or 0)
    if level > 0:
        return "SCHEDULE_TOPIC_XXXX", min(level, DELAY_LEVEL_MAX) - 1
    return topic, queue_id


def properties_of(frame: Frame) -> dict[str, str]:
    """Return the properties in a send's header."""
    return _properties_of(frame.ext.get("i") or frame.ext.get("properties") or "")


def _properties_of(text: str) -> dict[str, str]:
    return dict(item.split("\x01", 1) for item in text.split("\x02") if "\x01" in item)


def rewrite(line: Line, pairs: Translation) -> dict[str, str]:
    """Return a request's ext fields with captured values replaced by ours."""
    ext = {name: pairs.address(value) for name, value in line.frame.ext.items()}
    code = line.frame.code
    if code in {33, 36} and "offset" in ext:
        ext["offset"] = pairs.to_physical(ext["offset"])
    for name in ("originMsgId", "key", "msgId"):
        if name in ext:
            ext[name] = pairs.to_offset_id(ext[name])
    if code in PULLS | {15} and "topic" in ext:
        for name in ("queueOffset", "commitOffset"):
            if name in ext:
                place = ext["topic"], int(ext.get("queueId", -1))
                ext[name] = pairs.to_queue_offset(*place, ext[name])
    return ext


def compare(
    captured: Line, ours: Frame, pairs: Translation, *, with_remark: bool
) -> list[Difference]:
    """Yield every difference between a captured server frame and ours."""
    theirs = captured.frame
    if theirs.code != ours.code:
        left, right = (theirs.code, theirs.remark), (ours.code, ours.remark)
        return [Difference("frame", left, right)]
    asked = captured.request.frame if captured.request is not None else theirs
    found = list(_header(theirs, ours, with_remark=with_remark))
    found.extend(_ext(asked, theirs, ours, pairs))
    if captured.request is not None and asked.code in RELAYED:
        if theirs.body != ours.body:
            found.append(Difference("body", theirs.body[:200], ours.body[:200]))
    else:
        found.extend(_body(asked, theirs, ours, pairs))
    return found


def _header(theirs: Frame, ours: Frame, *, with_remark: bool) -> Iterator[Difference]:
    for name in ("flag", "language", "version", "serialize_type"):
        if getattr(theirs, name) != getattr(ours, name):
            yield Difference(f"header.{name}", getattr(theirs, name), getattr(ours, name))
    if with_remark and theirs.remark != ours.remark:
        yield Difference("remark", theirs.remark, ours.remark)


def _ext(asked: Frame, theirs: Frame, ours: Frame, pairs: Translation) -> Iterator[Difference]:
    for name in sorted(theirs.ext.keys() | ours.ext.keys()):
        left, right = theirs.ext.get(name), ours.ext.get(name)
        if left is None or right is None or not _same(asked, ours, name, left, right, pairs):
            yield Difference(f"ext.{name}", left, right)


def _same(asked: Frame, ours: Frame, name: str, left: str, right: str, pairs: Translation) -> bool:
    code = asked.code
    if code in SENDS and name == "queueOffset":
        topic, queue_id = place_of_send(asked)
        queue_id = int(ours.ext["queueId"]) if queue_id < 0 else queue_id
        return pairs.same_queue_offset(topic, queue_id, left, right)
    if code in SENDS and name == "transactionId" and "UNIQ_KEY" not in properties_of(asked):
        return pairs.same_made_key(left, right)
    if code == PUSH_REPLY and name == "properties":
        return _same_reply(_properties_of(left), _properties_of(right), pairs)
    if name in QUEUE_OFFSETS:
        queue_id = int(asked.ext.get("queueId") or 0)
        return pairs.same_queue_offset(asked.ext.get("topic", ""), queue_id, left, right)
    kinds: dict[str, Callable[[str, str], bool]] = {
        "msgId": pairs.same_offset_id,
        "timestamp": pairs.same_time,
        "storeTimestamp": pairs.same_time,
        "indexLastUpdateTimestamp": pairs.same_time,
        "indexLastUpdatePhyoffset": pairs.same_physical,
        "bornHost": pairs.same_client,
    }
    if name in kinds:
        return kinds[name](left, right)
    return pairs.address(left) == right


def _same_reply(left: dict[str, str], right: dict[str, str], pairs: Translation) -> bool:
    """Compare the properties of a pushed reply, which Java writes in hash map order."""
    times = left.pop("PUSH_REPLY_TIME", ""), right.pop("PUSH_REPLY_TIME", "")
    return left == right and all(times) and pairs.same_time(*times)


# -- bodies ------------------------------------------------------------------------------------


def _body(asked: Frame, theirs: Frame, ours: Frame, pairs: Translation) -> Iterator[Difference]:
    if not theirs.body or not ours.body:
        if theirs.body != ours.body:
            yield Difference("body", theirs.body[:200], ours.body[:200])
    elif theirs.body[4:8] == MESSAGE_MAGIC:
        yield from _messages(stored_messages(theirs.body), stored_messages(ours.body), pairs)
    elif theirs.body[:1] in {b"{", b"["}:
        yield from _values("body", loads_java(theirs.body), loads_java(ours.body), pairs)
    elif pairs.address(theirs.body.decode("utf-8", "replace")).encode() != ours.body:
        yield Difference("body", theirs.body[:200], ours.body[:200])


def _messages(
    left: list[dict[str, Any]], right: list[dict[str, Any]], pairs: Translation
) -> Iterator[Difference]:
    if len(left) != len(right):
        names = [
            [(m["topic"], m["queueId"], m["queueOffset"]) for m in part] for part in (left, right)
        ]
        yield Difference("body.count", names[0], names[1])
        return
    for theirs, mine in zip(left, right, strict=True):
        yield from _message(theirs, mine, pairs)


def _message(
    theirs: dict[str, Any], mine: dict[str, Any], pairs: Translation
) -> Iterator[Difference]:
    place = theirs["topic"], theirs["queueId"]
    for name, left in theirs.items():
        right = mine[name]
        if name == "commitLogOffset":
            same = pairs.same_physical(str(left), str(right))
        elif name == "queueOffset":
            same = pairs.same_queue_offset(*place, str(left), str(right))
        elif name == "storeTimestamp":
            same = pairs.same_store_time(mine["commitLogOffset"], left, right)
        elif name == "storeHost":
            same = pairs.address(left) == right
        elif name == "bornHost":
            same = pairs.same_client(left, right)
        elif name == "properties":
            yield from _properties(left, right, pairs)
            continue
        else:
            same = left == right
        if not same:
            yield Difference(f"body.{name}", left, right)


def _properties(
    left: dict[str, str], right: dict[str, str], pairs: Translation
) -> Iterator[Difference]:
    for name in sorted(left.keys() | right.keys()):
        theirs, mine = left.get(name), right.get(name)
        if theirs is None or mine is None:
            same = False
        elif name in OFFSET_ID_PROPERTIES:
            same = pairs.same_offset_id(theirs, mine)
        elif name == "UNIQ_KEY":
            same = pairs.same_uniq_key(theirs, mine)
        else:
            same = theirs == mine
        if not same:
            yield Difference(f"body.properties.{name}", theirs, mine)


def _values(path: str, left: Any, right: Any, pairs: Translation) -> Iterator[Difference]:
    """JSON values. Lists of these bodies are Java sets or hash maps' values: order is chance."""
    if isinstance(left, dict) and isinstance(right, dict):
        left = {pairs.address(key): value for key, value in left.items()}
        for key in sorted(left.keys() | right.keys()):
            if key not in left or key not in right:
                yield Difference(f"{path}.{key}", left.get(key), right.get(key))
            else:
                yield from _values(f"{path}.{key}", left[key], right[key], pairs)
    elif isinstance(left, list) and isinstance(right, list) and len(left) == len(right):
        left, right = sorted(left, key=repr), sorted(right, key=repr)
        for index, (theirs, mine) in enumerate(zip(left, right, strict=True)):
            yield from _values(f"{path}[{index}]", theirs, mine, pairs)
    elif (pairs.address(left) if isinstance(left, str) else left) != right:
        yield Difference(re.sub(r"\[\d+\]", "[]", path), left, right)
