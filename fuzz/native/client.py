"""Gives hostile bytes to the entry points of the extension module that a client uses."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable
from typing import Any

MAGICS = (0xDAA320A7, 0xDAA320AB)
ODD = (b"", b"\x01", b"\x02", b'"', b"\\", b"\n", b"\xff", b"\xc3\xbc", b"\x00" * 7, b"0", b"-1",
       b"null", b"{", b"}", b",", b'"flag":1', b"9" * 19)  # fmt: skip
TEXTS = ("", "TAGS\x01a\x02", "ü", "\ud800", '"', "\\", "\x03", "x" * 3000, "\U0001f600")


class Token:
    """A send that waits for its answer."""


class Refused(Token):
    """A send whose answer cannot be made."""


def refuse(*fields: Any) -> Any:
    """Make no answer."""
    raise ValueError(fields)


class ClientInputs:
    """Makes pull answers, sends and their answers, and runs the module on them.

    ``tell`` writes an input down before it runs, and makes memory scarce for some.
    """

    def __init__(self, core: Any, chance: random.Random, tell: Callable[[bytes], None]) -> None:
        self.core = core
        self.chance = chance
        self.tell = tell
        self.cut = self.encoded = self.taken = 0
        self.token_type = Token

    def waiting(self) -> dict[int, tuple[Token, float]]:
        """Sends that wait for an answer."""
        return {opaque: (Token(), 1.0) for opaque in range(9)}

    def spoilt(self, data: bytes) -> bytes:
        chance = self.chance
        spoilt = bytearray(data)
        for _ in range(chance.choice((0, 0, 0, 1, 1, 2, 5))):
            position = chance.randrange(len(spoilt) + 1)
            kind = chance.randrange(4)
            if kind == 0:
                spoilt[position:position] = chance.choice(ODD)
            elif kind == 1:
                del spoilt[position : position + chance.randrange(9)]
            elif kind == 2 and position < len(spoilt):
                spoilt[position] = chance.randrange(256)
            else:
                odd = chance.choice(ODD)
                spoilt[position : position + len(odd)] = odd
        return bytes(spoilt)

    def record(self) -> bytes:
        chance = self.chance
        body = bytes(chance.choice((0, 0, 1, 40)))
        topic = chance.choice((b"", b"T", b"t" * 127, b"\xc3\xbc", b"t" * 128))
        properties = bytes(chance.choice((0, 0, 5, 300)))
        size = 91 + len(body) + len(topic) + len(properties) + chance.choice((0,) * 9 + (6, -1))
        head = struct.pack(
            ">IIiiiqqiq8sq8siqi",
            size, chance.choice(MAGICS[:1] * 8 + MAGICS), *[chance.getrandbits(31)] * 3,
            chance.getrandbits(62), -1, chance.choice((0,) * 6 + (1, 16, 32, 48, -1)),
            chance.getrandbits(44), bytes(8), 0, bytes(8), 0, 0,
            len(body) + chance.choice((0,) * 12 + (1, -1, 1 << 20)),
        )  # fmt: skip
        return head + body + bytes([len(topic)]) + topic + struct.pack(">H", len(properties)) + (
            properties
        )  # fmt: skip

    def run_messages(self) -> None:
        """Cut an answer into messages, and read each body and record."""
        chance = self.chance
        count = chance.choice((0, 1, 1, 3, 32))
        data = self.spoilt(b"".join(self.record() for _ in range(count)))
        self.tell(data)
        messages = self.core.cut_messages(data, "queue", lambda *fields: fields)
        positions = [chance.randrange(len(data) + 3) - 1]
        if messages is not None:
            self.cut += 1
            assert sum(size for _, _, size, _, _ in messages) == len(data)
            positions = [position for *_, position in messages]
        for position in positions:
            body = self.core.record_body(data, position)
            name = chance.choice((b"TAGS", b"", b"\x01", b"x" * 400))
            value = self.core.record_property(data, position, name)
            fields = self.core.decode_record(data, position, lambda *fields: fields)
            if fields is None:
                assert body is None
                assert value is None
            else:
                assert len(fields) == 18
                assert value in fields[17]
                assert fields[14] == len(fields[15])
                assert body == (None if fields[7] & 1 else fields[15])

    def run_encode_request(self) -> None:
        """Write a send with odd parts, numbers and properties."""
        chance = self.chance
        parts: Any = tuple(chance.choice(ODD) for _ in range(3))
        if chance.random() < 0.02:
            parts = chance.choice((None, (b"",), (b"", b"", ""), 7))
        numbers = [chance.choice((0, 1, -1, 2**31, 2**63 - 1, -(2**63), 2**63)) for _ in range(5)]
        text = "".join(chance.choice(TEXTS) for _ in range(chance.randrange(4)))
        body = bytes(chance.choice((0, 1, 100, 1 << 24) if chance.random() < 0.001 else (0, 1, 9)))
        self.tell(text.encode("utf-8", "surrogatepass"))
        frame = self.core.encode_send_request(parts, *numbers, text, body)
        if frame is not None:
            self.encoded += 1
            length, header_bytes = struct.unpack_from(">II", frame)
            assert length + 4 == len(frame)
            assert header_bytes == len(frame) - 8 - len(body)

    def answer(self, opaque: int) -> bytes:
        chance = self.chance
        ext: dict[str, Any] = {"msgId": "0A", "queueId": "3", "queueOffset": "77"}
        ext |= {"transactionId": "7F"} if chance.random() < 0.7 else {"more": 1}
        ext |= {"recallHandle": "h"} if chance.random() < 0.2 else {}
        header = {"code": 0, "extFields": ext, "flag": 1, "language": "PYTHON", "opaque": opaque,
                  "remark": None, "version": 493}  # fmt: skip
        names = list(header)
        if chance.random() < 0.2:
            chance.shuffle(names)
        text = json.dumps({name: header[name] for name in names}, separators=(",", ":")).encode()
        if chance.random() < 0.3:
            text = self.spoilt(text)
        return struct.pack(">II", 4 + len(text), len(text)) + text

    def run_answers(self) -> None:
        """Take the requests of answers, some of which are spoilt."""
        chance = self.chance
        data = b"".join(self.answer(chance.randrange(9)) for _ in range(chance.choice((1, 3, 64))))
        if chance.random() < 0.3:
            data = self.spoilt(data)
        waiting: Any = {
            opaque: (chance.choice((Token, Token, Token, Refused, str))(), 1.0)
            for opaque in range(9)
        }
        if chance.random() < 0.02:
            waiting[chance.randrange(9)] = chance.choice(((), 7, None))
        before, taken = len(waiting), list[Any]()
        make = refuse if chance.random() < 0.02 else lambda *fields: fields
        self.tell(data)
        try:
            end = self.core.take_send_answers(data, waiting, taken, Token, make)
        finally:
            assert len(waiting) + len(taken) == before
        self.taken += len(taken)
        assert 0 <= end <= len(data)
        assert (end == 0) == (not taken)
