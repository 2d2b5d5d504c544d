"""Gives hostile bytes to the entry points of the extension module, and looks at what they return.

Those of a client are in client.py.  Between these calls drive.c makes many more (driven.py).

`fuzz_native.py` starts it with a module built with sanitizers.  Each input is written to a file
before it runs, so the input of a crash is known.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import mmap
import os
import random
import struct
import sys
import time
import zlib
from array import array
from importlib.machinery import ExtensionFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from typing import Any

import driven
from client import ClientInputs

TOKENS = (
    b'"', b"\\", b"\\u0041", b"\x01", b"\x02", b"{", b"}", b",", b"-1", b"0", b"9" * 18,
    b"UNIQ_KEY\x01", b"KEYS\x01", b"TAGS\x01", b"DELAY", b"PGROUP\x01g\x02",
    b"DELAY\x011\x02", b"TIMER_DELIVER_MS\x01999999999999999\x02", b"TRAN_MSG\x01true\x02",
    b"\xff", b"\x00", b'"j":"0"',
    b'"cmqGroup":"g"', b'"flag":2', b"\xf0\x9f\x98\x80", b"\\b", b"\\f", b"\\n",
    b"\\r", b"\\t", b"\\/",
)  # fmt: skip
TEXTS = ("", "a", "b c", "  ", "ü", "\U0001f600 x", "\ud800", "x" * 5000, "\x00")
ORIGIN = bytes(36)
STORED_PROPERTIES = (
    b"", b"KEYS\x01a b  c\x02UNIQ_KEY\x01id\x02TAGS\x01a\x02", b"UNIQ_KEY\x01id\x02" * 3,
    b"KEYS\x01" + b"k " * 40, b"TAGS\x01\xc3\xa9", b"TAGS\x01a\x02TAGS\x01\x02TAGS\x01b",
    b"UNIQ_KEY\x01\xff\x02KEYS", b"KEYS\x01  \x02", b"__CRC32#\x010987654321\x02",
)  # fmt: skip
START = 1 << 33
"""Where the log of `run_gather_records` begins."""
HERE, DRIVEN = 100, 10
"""So many calls that are looked at, and then so many entry points that drive.c calls."""
ERRORS = (TypeError, ValueError, OverflowError, MemoryError, AttributeError, BufferError)
"""What wrong arguments and scarce memory raise; no frame raises anything."""


def loaded(name: str, path: str) -> Any:
    """One of the modules in an extension file."""
    loader = ExtensionFileLoader(name, path)
    module = module_from_spec(spec_from_loader(name, loader))  # type: ignore[arg-type]
    loader.exec_module(module)
    return module


class Queue:
    """A queue as the encoder sees it."""

    def __init__(self, topic: bytes, *, is_watched: bool) -> None:
        self.max = 5
        self.magic = 0xDAA320A7
        self.topic_part = bytes([len(topic) & 0xFF]) + topic
        self.is_watched = is_watched
        self.is_gone = False


class Held(Queue):
    """A queue that is held: the encoder stops before it."""


class Broken(Queue):
    """A queue without what the encoder needs."""

    def __init__(self) -> None:
        self.max = 1 << 80


class Fuzzer:
    """Mutates frames and keys, and runs the module on them."""

    def __init__(self, path: str, corpus: Path, seed: int, current: Path) -> None:
        self.core = loaded("cometmq.native._core", path)
        self.drive = loaded("drive", path)
        self.scarce = ctypes.c_int.in_dll(ctypes.CDLL(path), "calls_until_scarce")
        self.frames = [file.read_bytes() for file in sorted(corpus.iterdir())]
        self.mapping = mmap.mmap(-1, 2 << 20)
        self.pulls = [frame for frame in self.frames if b"queueOffset" in frame]
        self.chance = random.Random(seed)
        self.current = os.open(current, os.O_CREAT | os.O_RDWR | os.O_TRUNC)
        self.encoders = [self.encoder() for _ in range(8)]
        self.client = ClientInputs(self.core, self.chance, self.tell)
        self.entries = (
            *[self.run_encode] * 6,
            self.run_hash_keys,
            self.run_link_entries,
            self.run_queues,
            self.run_gather_records,
            self.run_answer_pull,
            self.run_read_pull,
            self.run_is_resident,
            *[self.run_copy] * 2,
            self.run_scan_records,
            self.run_check_entries,
            *[self.run_decode_columns] * 2,
            self.run_walk_records,
            self.client.run_messages,
            self.client.run_encode_request,
            self.client.run_answers,
        )
        self.copier = self.core.CopyEncoder(
            {"t": {number: self.queue(b"t") for number in range(8)}},
            Queue,
            bytes(8),
            self.chance.random() < 0.8,
            self.chance.random() < 0.2,
        )
        self.executions = self.encoded = self.gathered = self.copied = 0
        self.scanned = self.checked = self.decoded = 0
        self.answered = self.pulls_read = 0
        self.driven: dict[str, list[int]] = {}
        """Entry point -> calls that drive.c made, and those that were not left to Python."""
        self.waiting: list[driven.Driven] = []

    def tell(self, data: bytes) -> None:
        """Write an input down, and make memory scarce for some."""
        os.ftruncate(self.current, 0)
        os.pwrite(self.current, data, 0)
        self.scarce.value = self.chance.randrange(12) if self.chance.random() < 0.1 else -1

    def encoder(self) -> Any:
        chance = self.chance
        topics: dict[str, Any] = {}
        for frame in self.frames:
            for name in names_of(frame):
                topics[name] = {number: self.queue(name.encode()) for number in range(8)}
        for name in ("SCHEDULE_TOPIC_XXXX", "rmq_sys_wheel_timer", "RMQ_SYS_TRANS_HALF_TOPIC"):
            topics[name] = {number: self.queue(name.encode()) for number in range(2)}
        topics["no dict"] = None
        parts = [b"", b"x", b'{"code":0', b"y" * 300]
        return self.core.SendEncoder(
            dict.fromkeys(topics, 16),
            chance.choice([set(), set(topics), 7]),
            topics,
            Queue,
            chance.choice([b"", b"CLUSTER\x01c", b"CLUSTER\x01c", b"s" * 32000]),
            tuple(chance.choice(parts) for _ in range(3)),
            (bytes(5), chance.choice(parts)),
            chance.choice(parts),
            chance.getrandbits(32),
            bytes(chance.choice((0, 8, 144))),
            chance.choice((1, 1000)),
            chance.choice(parts),
            chance.random() < 0.8,
            chance.random() < 0.2,
        )

    def queue(self, topic: bytes) -> Queue:
        kind = self.chance.randrange(40)
        if kind == 0:
            return Broken()
        queue_type = Held if kind == 1 else Queue
        return queue_type(topic, is_watched=self.chance.random() < 0.5)

    def spoilt_frame(self, frames: list[bytes] | None = None) -> bytes:
        chance = self.chance
        spoilt = bytearray(chance.choice(frames or self.frames))
        body_bytes = chance.randrange(200)
        for _ in range(chance.choice((0, 0, 1, 1, 2, 5))):
            position = chance.randrange(len(spoilt) + 1)
            kind = chance.randrange(4)
            if kind == 0:
                spoilt[position:position] = chance.choice(TOKENS)
            elif kind == 1:
                del spoilt[position : position + chance.randrange(9)]
            elif kind == 2 and position < len(spoilt):
                spoilt[position] = chance.randrange(256)
            else:
                token = chance.choice(TOKENS)
                spoilt[position : position + len(token)] = token
        if chance.random() < 0.1 and len(spoilt) >= 8 + body_bytes:
            spoilt[:4] = (len(spoilt) - 4).to_bytes(4, "big")
            spoilt[5:8] = (len(spoilt) - 8 - body_bytes).to_bytes(3, "big")
        return bytes(spoilt)

    def run_encode(self) -> None:
        chance = self.chance
        data = b"".join(self.spoilt_frame() for _ in range(chance.choice((1, 1, 2, 8, 70))))
        position = chance.choice((0,) * 9 + (chance.randrange(len(data) + 2) - 1,))
        wrote = chance.choice((0, 1, 1 << 31, (1 << 62) + 1, -1))
        limit = wrote + chance.choice((1 << 30, 1 << 30, 1 << 30, 700, 0, -1))
        body_bytes_max = chance.choice((1 << 22, 1 << 22, 10, 0, -1, 1 << 40))
        os.ftruncate(self.current, 0)
        os.pwrite(self.current, data, 0)
        encoder = chance.choice(self.encoders)
        self.scarce.value = chance.randrange(12) if chance.random() < 0.1 else -1
        run = encoder.encode(
            data,
            position,
            wrote,
            limit,
            1 << 40,
            ORIGIN,
            body_bytes_max,
            0,
            1 << 50,
            chance.random() < 0.8,
            chance.random() < 0.8,
            chance.choice((1, 1, 1, 2, 7, 0)),
        )
        if run is None:
            return
        end, answers, (records, queues, keys, arrivals), delayed, timed, halves, numbered = run
        self.encoded += 1
        units = [queue[1] for queue in queues]
        sizes = [
            int.from_bytes(unit[start + 8 : start + 12], "big")
            for unit in units
            for start in range(0, len(unit), 20)
        ]
        assert position < end <= len(data)
        assert sum(sizes) == len(records) <= limit - wrote
        assert keys is None or (
            keys[0] == len(sizes) and keys[1] == wrote and len(keys[3]) % 8 == 0
        )
        assert len(arrivals) <= len(sizes)
        assert len(delayed) + len(timed) + len(halves) + len(numbered) <= len(sizes)
        assert count_frames(answers) <= len(sizes)

    def run_hash_keys(self) -> None:
        chance = self.chance
        batch: Any = [
            (
                chance.choice((*TEXTS, 7)),
                chance.getrandbits(64) >> 1,
                chance.getrandbits(44),
                self.keys(),
            )
            for _ in range(chance.choice((0, 1, 3, 40)))
        ]
        if batch and chance.random() < 0.05:
            odd = (None, 1, (), ("t",), ("t", 1 << 70, 0, (None, None, None)), ("t", 0, 0, None),
                   ("t", 0, 0, [None, None, None]), (b"t", 0, 0, (1, 2, 3)))  # fmt: skip
            batch[chance.randrange(len(batch))] = chance.choice(odd)
        os.ftruncate(self.current, 0)
        os.pwrite(self.current, repr(batch).encode("utf-8", "surrogatepass"), 0)
        self.scarce.value = chance.randrange(12) if chance.random() < 0.1 else -1
        columns = self.core.hash_keys(batch)
        assert len({len(column) for column in columns}) == 1

    def run_queues(self) -> None:
        """Queues of a run, some of them odd, some with a tail that is exported or no bytearray."""
        chance = self.chance
        queues: list[Any] = []
        exported = []
        for _ in range(chance.choice((0, 1, 3, 70))):
            queue: Any = Queue(b"t", is_watched=False)
            queue.tail = bytearray(chance.randrange(3) * 20)
            queue.is_dirty = chance.random() < 0.5
            queues.append((queue, bytes(chance.randrange(4) * 20), chance.getrandbits(62), 7))
            if chance.random() < 0.02:
                exported.append(memoryview(queue.tail))
            elif chance.random() < 0.02:
                queue.tail = bytes(20)
        if queues and chance.random() < 0.05:
            odd = (7, (), (Broken(), b"", 1, 1), (queues[0][0], bytearray(20), 1, 1))
            queues[chance.randrange(len(queues))] = chance.choice(odd)
        self.tell(repr(queues).encode())
        marked: list[Any] = []
        self.core.extend_tails(queues)
        self.core.advance_queues(
            queues, chance.random() < 0.5, lambda *note: marked.append(note), 1 << 40
        )
        assert len(marked) == sum(not queue[0].is_dirty for queue in queues)
        assert all(len(queue[0].tail) % 20 == 0 for queue in queues)

    def run_link_entries(self) -> None:
        chance = self.chance
        count = chance.choice((0, 1, 3, 100))
        columns = [chance.randbytes(8 * count) for _ in range(3)]
        if chance.random() < 0.05:
            columns[chance.randrange(3)] += bytes(8)
        slot_count = chance.choice((1, 1023, 1025, 5000))
        slots = bytearray(chance.randbytes(4 * slot_count))
        pages = bytearray((slot_count + 1023) // 1024)
        if chance.random() < 0.05:
            (slots if chance.random() < 0.5 else pages).clear()
        number = chance.choice((0, 1, 2**31 - 50, -1))
        arguments = (*columns, number, *(chance.getrandbits(64) - 2**63 for _ in range(2)))
        self.tell(repr((arguments, slots, pages)).encode())
        entries, new_slots = self.core.link_entries(*arguments, slots, pages)
        assert len(entries) == 20 * count
        assert 0 <= new_slots <= count

    def keys(self) -> Any:
        if self.chance.random() < 0.1:
            return self.chance.randbytes(self.chance.randrange(17))
        texts = [self.chance.choice((None, None, *TEXTS)) for _ in range(3)]
        if self.chance.random() < 0.2:
            texts[1] = "".join(map(chr, self.chance.choices(range(0x20, 0xD000), k=5)))
        if self.chance.random() < 0.01:
            texts[2] = 7  # type: ignore[call-overload]
        return texts[0], texts[1], texts[2]

    def run_gather_records(self) -> None:
        """Units of records that lie one behind the other or apart; some are spoilt."""
        result, most, count = self.gather(self.core.gather_records)
        if result is not None:
            body, record_count, examined = result
            self.gathered += 1
            assert record_count <= min(most, examined) <= examined <= count
            assert len(body) >= 36 * record_count

    def run_answer_pull(self) -> None:
        """The same, with the parts of a header: JSON, binary, or wrong ones."""
        chance = self.chance
        parts: tuple[Any, ...] = (b"", b"p", b"q" * 30, b"r", b"s" * chance.choice((0, 5000)))
        parts += (b"t",) * chance.choice((0, 1, 1))
        if chance.random() < 0.05:
            parts = chance.choice((parts[:3], (), (1, 2, 3, 4, 5), [*parts]))
        offsets = [chance.choice((0, 7, -1, 1 << 62, -(1 << 63))) for _ in range(3)]
        opaque = chance.choice((0, -1, 1 << 30, 1 << 31))
        result, most, count = self.gather(self.core.answer_pull, parts, opaque, *offsets)
        if result is not None:
            frame, record_count, examined, byte_count = result
            self.answered += 1
            assert 1 <= record_count <= min(most, examined) <= examined <= count
            assert 36 * record_count <= byte_count < len(frame)
            assert count_frames(frame) == 1

    def run_read_pull(self) -> None:
        """Frames of the corpus, most of them spoilt; some are sends."""
        chance = self.chance
        data = b"".join(self.spoilt_frame() for _ in range(chance.choice((1, 1, 2))))
        if chance.random() < 0.7:
            data = self.spoilt_frame(self.pulls) + data
        self.tell(data)
        position = chance.choice((0,) * 9 + (chance.randrange(len(data) + 2) - 1,))
        pull = self.core.read_pull(data, position)
        if pull is not None:
            self.pulls_read += 1
            assert position < pull[0] <= len(data)
            assert 32 <= len(pull[1]) < pull[0] - position + 32

    def run_is_resident(self) -> None:
        """Positions in and around a mapping, and memory that is none."""
        chance = self.chance
        memory = chance.choice((self.mapping,) * 9 + (b"bytes", bytearray(9000), 7))
        position, size = (
            chance.choice((0, 1, 4095, 4096, 8191, chance.randrange(1 << 21), -1, 1 << 62))
            for _ in range(2)
        )
        self.tell(b"%d %d" % (position, size))
        if self.core.is_resident(memory, position, size):
            assert 0 <= position <= position + size <= len(memory)

    def gather(self, entry: Any, *more: Any) -> tuple[Any, int, int]:
        """Give units to an entry point: its result, the most records, the number of units."""
        chance = self.chance
        log = bytearray()
        units = bytearray()
        codes = [0, 1, -1, 1 << 40, -(1 << 33)]
        for _ in range(chance.choice((0, 1, 5, 70, 200))):
            log += bytes(chance.choice((0, 0, 40)))
            size = chance.choice((36, 37, 100))
            magic = chance.choice((0xDAA320A7, 0xDAA320AB) * 50 + (0xBBCCDDEE,))
            units += struct.pack(
                ">qiq", START + len(log), size, chance.choice(codes[:3] * 9 + codes)
            )
            log += struct.pack(">IIqqiq", size, magic, 0, 0, 0, START + len(log)) + bytes(size - 36)
        for _ in range(chance.choice((0, 0, 0, 0, 1, 3)) if units else 0):
            units[chance.randrange(len(units))] = chance.randrange(256)
        reads = chance.choice((bytes, memoryview, lambda part: part[:-1], lambda part: None, str))
        read_max = chance.choice((1, 1, 1, 1, 1, 2))

        def read(position: int, size: int) -> Any:
            start = position - START
            return reads(bytes(log[start : start + size]) * read_max if size < 1 << 20 else b"")

        os.ftruncate(self.current, 0)
        os.pwrite(self.current, units, 0)
        self.scarce.value = chance.randrange(12) if chance.random() < 0.1 else -1
        count = len(units) // 20
        first = chance.choice((0, 0, 0, count // 2, count + 1, -1))
        wanted = chance.choice(
            (None, None, frozenset(codes[:2]), frozenset(range(40)), frozenset(), {"a"}, 7)
        )
        limits = (chance.choice((32, 1, 1000, 0)), chance.choice((1 << 20, 100, 0, -1)))
        result = entry(
            units, first, count - first + chance.choice((0, 0, 0, 0, 1, -1)), wanted, *limits,
            chance.choice((1 << 20, 1 << 20, 50)), read, *more,
        )  # fmt: skip
        return result, limits[0], count

    def run_copy(self) -> None:
        """Records of messages that wait, some of them spoilt."""
        chance = self.chance
        records = bytearray(b"".join(self.record() for _ in range(chance.choice((1, 2, 9, 70)))))
        for _ in range(chance.choice((0, 0, 0, 1, 3))):
            position = chance.randrange(len(records))
            if chance.random() < 0.5:
                records[position] = chance.randrange(256)
            else:
                token = chance.choice(TOKENS)
                records[position : position + len(token)] = token
        if chance.random() < 0.1:
            del records[chance.randrange(len(records)) :]
        self.tell(bytes(records))
        position = chance.choice((0,) * 9 + (chance.randrange(len(records) + 2) - 1,))
        wrote = chance.choice((0, 1, 1 << 31, (1 << 62) + 1, -1))
        limit = wrote + chance.choice((1 << 30, 1 << 30, 1 << 30, 700, 0, -1))
        end, count, last_offset, waiting_ms, (copies, queues, keys, _) = self.copier.encode(
            bytes(records), position, wrote, limit, 1 << 40, chance.choice((1 << 40, 7, -1)),
            chance.choice((1 << 22, 1 << 22, 10, 0, -1)), chance.random() < 0.3,
        )  # fmt: skip
        self.copied += count
        assert position <= end <= len(records)
        assert sum(len(queue[1]) for queue in queues) == 20 * count
        assert keys is None or (keys[0] == count and keys[1] == wrote and len(keys[3]) % 8 == 0)
        assert count <= len(copies) <= limit - wrote
        assert waiting_ms == -1 or waiting_ms <= 1 << 40
        assert isinstance(last_offset, int)

    def record(self) -> bytes:
        """A record for one of a few queues; now and then without one."""
        chance = self.chance
        names = [
            b"REAL_TOPIC\x01" + chance.choice((b"t",) * 20 + (b"no dict", b"", b"x")),
            b"REAL_QID\x01%d" % chance.choice((0, 1, 2, 3, 3, 7, 8)),
            b"UNIQ_KEY\x01%d" % chance.randrange(99),
            b"KEYS\x01" + chance.choice((b"", b"a b", b"  c ", b"a " * 40)),
            b"TAGS\x01" + chance.choice((b"", b"A", b"\xc3\xa9")),
        ]
        names = chance.sample(names, chance.choice((5, 5, 5, 5, 4, 2)))
        properties = b"".join(name + b"\x02" for name in names)
        body = bytes(chance.choice((0, 1, 40)))
        topic = chance.choice((b"SCHEDULE", b""))
        is_long = chance.random() < 0.2
        sizes = (struct.pack(">B", len(topic)), struct.pack(">H", len(topic)))[is_long]
        tail = sizes + topic + struct.pack(">H", len(properties)) + properties
        return struct.pack(
            ">IIIiiqqIq8sq8siqI", 88 + len(body) + len(tail),
            (0xDAA320A7, 0xDAA320AB)[is_long], 0, 0, 0, chance.getrandbits(40), 0,
            chance.choice((0,) * 20 + (4, 8, 16, 32)), 0, bytes(8),
            chance.choice((5, 7, 7, 8, 1 << 41)), bytes(8), 0, 0, len(body),
        ) + body + tail  # fmt: skip

    def records(self) -> tuple[bytearray, list[int]]:
        """A stretch of a log, and the positions of its records; some are spoilt."""
        chance = self.chance
        log, positions, next_offsets = bytearray(), [], dict.fromkeys(range(4), 7)
        for _ in range(chance.choice((0, 1, 2, 9, 40, 40))):
            queue_id = chance.randrange(4)
            topic = chance.choice((b"t",) * 40 + (b"u", b"unknown", b"\xff", b"n" * 200))
            positions.append(len(log))
            log += record_of(
                topic, queue_id, next_offsets[queue_id], START + len(log),
                chance.randbytes(chance.choice((0, 1, 100))), chance.choice(STORED_PROPERTIES),
                chance.choice((0,) * 12 + (4, 8, 12, 0x10, 0x20, 0x30)),
            )  # fmt: skip
            next_offsets[queue_id] += chance.choice((1,) * 30 + (0, 2))
        for _ in range(chance.choice((0, 0, 0, 1, 3)) if log else 0):
            log[chance.randrange(len(log))] = chance.randrange(256)
        return log, positions

    def run_scan_records(self) -> None:
        """Records of known and unknown queues, at any index."""
        chance = self.chance
        log, positions = self.records()
        index = chance.choice((0, 0, 0, *positions, len(log), len(log) + 1, -1))
        known = {(topic, number): object() for topic in (b"t", b"\xff") for number in range(4)}
        self.tell(bytes(log))
        run = self.core.scan_records(
            bytes(log), index, chance.choice((START + index,) * 9 + (0, -1, (1 << 63) - 1)),
            chance.choice((1 << 62, 1 << 62, START, START + 300)), chance.random() < 0.8,
            chance.choice((0, 1, 2, 2, 2, 3)), chance.choice((known,) * 20 + ({}, 7)),
        )  # fmt: skip
        if run is not None:
            following, count, queues, entry_count, keys = run
            self.scanned += count
            assert START + index < following < START + len(log)
            assert sum(len(units) for _, _, units in queues) <= count * 20
            assert sum(len(hashes) for _, _, _, hashes in keys) in {0, 4 * entry_count}

    def run_check_entries(self) -> None:
        """Index entries of the records, or of none."""
        chance = self.chance
        log, positions = self.records()
        slots = array("i", bytes(4 * chance.choice((1, 1, 7, 1000))))
        entries = bytearray()
        numbers: dict[int, int] = {}
        offsets: list[int] = []
        hashes: list[int] = []
        for position in positions:
            for key_hash in hashes_of(self.core, log[position:]):
                offsets.append(START + position)
                hashes.append(key_hash)
        for number, (offset, key_hash) in enumerate(zip(offsets, hashes, strict=True), 1):
            slot = key_hash % len(slots)
            entries += struct.pack(">iqii", key_hash, offset, 0, numbers.get(slot, 0))
            numbers[slot] = number
        for _ in range(chance.choice((0, 0, 0, 1)) if entries else 0):
            entries[chance.randrange(len(entries))] = chance.randrange(256)
        self.tell(bytes(entries))
        first = chance.choice((0,) * 9 + (1, len(entries) // 20, 1 << 40, -1))
        log_position = chance.choice((START,) * 9 + (0, START + 1, -1))
        newest = chance.choice((slots,) * 20 + (array("i"), bytes(8), memoryview(bytearray(9))[1:]))
        count = self.core.check_entries(
            bytes(entries), first, chance.choice((1,) * 9 + (0, -1, 1 << 31)), newest,
            chance.choice((0, START, START + 100)), bytes(log), log_position,
        )  # fmt: skip
        self.checked += count
        assert 0 <= count <= len(entries) // 20

    def run_walk_records(self) -> None:
        """Records, from one of them on."""
        chance = self.chance
        log, positions = self.records()
        first = chance.choice((0, 0, 0, *positions, len(log), len(log) + 1, -1))
        last, count = chance.choice((len(log), len(log) - 9, -1)), chance.choice((9, 99, 0, -1))
        self.tell(bytes(log))
        starts, end = self.core.walk_records(bytes(log), first, last, count)
        walked = memoryview(starts).cast("q").tolist()
        assert len(walked) <= count
        assert [first, *walked] == sorted([first, *walked])
        assert first <= end <= len(log)
        assert not walked or (walked[0] == first and walked[-1] <= last and walked[-1] < end)

    def run_decode_columns(self) -> None:
        """Records at their positions, some of which are wrong, as any columns."""
        chance = self.chance
        log, positions = self.records()
        for _ in range(chance.choice((0, 0, 0, 0, 1)) if positions else 0):
            positions.insert(chance.randrange(len(positions)), chance.randrange(-1, len(log) + 2))
        sizes = [int.from_bytes(log[max(0, start) :][:4], "big") for start in positions]
        if sizes and chance.random() < 0.1:
            sizes[chance.randrange(len(sizes))] = chance.choice((-1, 0, 91, 1 << 31, 1 << 62))
        count = len(positions) + chance.choice((0,) * 20 + (1, -1))
        kinds = bytes(chance.choice((0, *range(2, 17))) for _ in range(chance.choice((1, 5, 16))))
        if chance.random() < 0.02:
            kinds = chance.choice((b"\x01", bytes(33), b"\xff"))
        offsets = array("q", [chance.choice((7, 8)) for _ in range(max(0, count))])
        self.tell(bytes(log))
        decoded = self.core.decode_columns(
            bytes(log), chance.choice((START,) * 9 + (-1, 0, (1 << 63) - 1)),
            array("q", positions), array("q", sizes), kinds, 0,
            chance.choice((None,) * 9 + (offsets,)), chance.choice((-(1 << 63), 0, 1)),
            chance.choice(((1 << 63) - 1, 0)),
            chance.choice((None,) * 4 + (frozenset((b"a", b"b")), frozenset(), 7)),
            chance.random() < 0.3,
        )  # fmt: skip
        if decoded is None:
            return
        rows, columns = decoded
        self.decoded += 1
        assert len(columns) == len(kinds)
        row_count = len(positions) if rows is None else len(rows) // 8
        for column in columns:
            if isinstance(column, bytearray):
                assert len(column) in {4 * row_count, 8 * row_count}
            else:
                check_texts(column, row_count)

    def run(self, seconds: float) -> None:
        """Make calls here, and let drive.c make many more after some of them."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            for _ in range(HERE):
                self.run_here()
            self.scarce.value = -1
            # By numbers, so that a seed gives the same calls in the same order.
            for _ in range(DRIVEN):
                self.run_driven()

    def run_here(self) -> None:
        """Make a call, and look at what it returns."""
        self.executions += 1
        with contextlib.suppress(*ERRORS):
            self.entries[self.executions % len(self.entries)]()
        if self.executions % 20_000 == 0:
            self.scarce.value = -1
            self.encoders[self.chance.randrange(8)] = self.encoder()

    def run_driven(self) -> None:
        """Make the calls of the next entry point."""
        if not self.waiting:
            # Variants and logs are made anew now and then.
            self.waiting = driven.all_of(self) * 4
            self.chance.shuffle(self.waiting)
        call = self.waiting.pop()
        taken = self.drive.run(
            call.name, call.entry, call.variants, call.inputs, call.is_framed, call.count,
            self.chance.getrandbits(60),
        )  # fmt: skip
        counts = self.driven.setdefault(call.name, [0, 0])
        counts[0] += call.count
        counts[1] += taken


def record_of(
    topic: bytes, queue_id: int, queue_offset: int, position: int, body: bytes, properties: bytes,
    sys_flag: int,
) -> bytes:  # fmt: skip
    """A stored message (codec/stored_message.py)."""
    is_v1 = len(topic) <= 127
    head = struct.pack(
        ">IIiqqiq", 0xDAA320A7 if is_v1 else 0xDAA320AB, zlib.crc32(body) & 0x7FFFFFFF, queue_id,
        queue_offset, position, sys_flag, 1,
    )  # fmt: skip
    head = head[:12] + bytes(4) + head[12:] + bytes(20 if sys_flag & 0x10 else 8) + bytes(8)
    head += bytes(20 if sys_flag & 0x20 else 8) + struct.pack(">iqi", 0, 0, len(body))
    tail = struct.pack(">B" if is_v1 else ">H", len(topic)) + topic
    tail += struct.pack(">H", len(properties)) + properties
    return struct.pack(">i", 4 + len(head) + len(body) + len(tail)) + head + body + tail


def hashes_of(core: Any, record: bytearray) -> list[int]:
    """The hashes of the index entries of the first record, if the core takes it."""
    topics = (b"t", b"u", b"unknown", b"n" * 200)
    known = {(topic, number): 0 for topic in topics for number in range(4)}
    position = int.from_bytes(record[28:36], "big")
    if position >= 1 << 62:
        return []
    # The last record stays with Python, so one more follows.
    size = int.from_bytes(record[:4], "big")
    more = record_of(b"t", 0, 0, position + size, b"", b"", 0)
    run = core.scan_records(bytes(record[:size]) + more, 0, position, 1 << 62, False, 2, known)
    return list(memoryview(run[4][0][3]).cast("I")) if run is not None and run[4] else []


def check_texts(column: Any, row_count: int) -> None:
    """Offsets ascend and end where the texts end, in a column of texts and in a map."""
    first, names, *rest = column
    entries = memoryview(first).cast("i")
    assert len(entries) == row_count + 1
    pairs = [(first, names)] if isinstance(names, bytearray) else [tuple(rest)]
    pairs += [names] if isinstance(names, tuple) else []
    for offsets, texts in pairs:
        ends = memoryview(offsets).cast("i").tolist()
        assert ends[0] == 0
        assert ends == sorted(ends)
        assert ends[-1] == len(texts)
        assert isinstance(names, bytearray) or len(ends) == entries[-1] + 1


def count_frames(data: bytes) -> int:
    """How many frames the bytes are; they are whole ones."""
    count = position = 0
    while position < len(data):
        position += 4 + int.from_bytes(data[position : position + 4], "big")
        count += 1
    assert position == len(data)
    return count


def names_of(frame: bytes) -> list[str]:
    """The topic that a frame of the corpus sends to."""
    for before, behind in ((b'"b":"', b'"'), (b'"topic":"', b'"')):
        if before in frame:
            return [frame.split(before)[1].split(behind)[0].decode("latin-1")]
    if b"\x00\x01b" in frame:
        value = frame.split(b"\x00\x01b")[1]
        return [value[4 : 4 + value[3]].decode("latin-1")]
    return []


def main() -> None:
    """Run for some seconds and print what was done."""
    path, corpus, seed, seconds, current = sys.argv[1:]
    fuzzer = Fuzzer(path, Path(corpus), int(seed), Path(current))
    fuzzer.run(float(seconds))
    print(
        json.dumps(
            {
                "executions": fuzzer.executions + sum(count for count, _ in fuzzer.driven.values()),
                "looked_at": fuzzer.executions,
                "processor_seconds": round(time.process_time(), 1),
                "runs_encoded": fuzzer.encoded,
                "pulls_gathered": fuzzer.gathered,
                "batches_decoded": fuzzer.decoded,
                "pulls_answered": fuzzer.answered,
                "pulls_read": fuzzer.pulls_read,
                "answers_cut": fuzzer.client.cut,
                "requests_encoded": fuzzer.client.encoded,
                "answers_taken": fuzzer.client.taken,
                "messages_copied": fuzzer.copied,
                "records_scanned": fuzzer.scanned,
                "entries_checked": fuzzer.checked,
                "driven": {name: fuzzer.driven[name] for name in sorted(fuzzer.driven)},
            }
        )
    )


if __name__ == "__main__":
    main()
