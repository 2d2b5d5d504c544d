"""Inputs and arguments for the calls that drive.c makes: many each second, nothing is compared.

Each entry point has a list of inputs, to which those join that reach a new part of the core, and
variants of its arguments; the input stands in place of the first None.
"""

from __future__ import annotations

import struct
from array import array
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from extension import Fuzzer

CALLS = 2000
"""So many calls of an entry point, then it is the turn of the next one."""
VARIANTS = 24
START = 1 << 33
"""Where the logs of pulls begin."""
CODES = (0, 1, -1, 1 << 40, 7, 9)


class Driven(NamedTuple):
    """One entry point."""

    name: str
    entry: Any
    variants: list[tuple[Any, ...]]
    inputs: list[bytes]
    is_framed: bool = False
    count: int = CALLS


def log_of(fuzzer: Fuzzer, count: int, gap: int, *, has_damage: bool) -> tuple[bytes, bytearray]:
    """Units, and the log to which they lead; records follow each other, or lie apart."""
    chance = fuzzer.chance
    log, units = bytearray(), bytearray()
    for _ in range(count):
        log += bytes(chance.choice((0, 0, gap)))
        size = chance.choice((36, 37, 100, 250))
        units += struct.pack(">qiq", START + len(log), size, chance.choice(CODES))
        magic = chance.choice((0xDAA320A7, 0xDAA320A7, 0xDAA320AB))
        log += struct.pack(">IIqqiq", size, magic, 0, 0, 0, START + len(log))
        log += bytes(size - 36)
    if has_damage and log:
        log[chance.randrange(len(log))] ^= 1 << chance.randrange(8)
    return bytes(units), log


def reader_of(fuzzer: Fuzzer, log: bytearray, kind: int) -> Any:
    """What gives the core bytes of a log: as views or bytes, too few, too many, none."""
    view, copy = memoryview(bytes(log)), bytes(log)

    def read(position: int, size: int) -> Any:
        start = position - START
        if start < 0 or size < 0:
            return None
        if kind == 0:
            return copy[start : start + size]
        part = view[start : start + size]
        return (part, part[:-1], None, copy)[kind - 1] if kind < 5 else "text"

    return read


def pulls(fuzzer: Fuzzer) -> list[Driven]:
    """answer_pull and gather_records: most units are sound, and so are most logs."""
    chance = fuzzer.chance
    units_of_logs, variants, gather_variants = [], [], []
    for number in range(VARIANTS):
        count = (1, 3, 32, 64, 65, 130)[number % 6]
        units, log = log_of(fuzzer, count, (0, 40, 3000)[number % 3], has_damage=number % 4 == 3)
        units_of_logs.append(units)
        parts = (b"", b"p", b"q" * 30, b"r", b"s" * chance.choice((0, 5000)))
        parts += (b"t",) * (number % 2)
        codes = chance.choice(
            (None, None, None, frozenset(CODES[:2]), frozenset(CODES), frozenset(range(40)))
        )
        wanted = (
            codes,
            chance.choice((32, 1, 1000, 64)),
            chance.choice((1 << 20, 1 << 20, 300, 0)),
            chance.choice((1 << 20, 1 << 20, 1 << 20, 50, 4000)),
            reader_of(fuzzer, log, chance.choice((0, 0, 1, 1, 1, 2, 3, 4, 5))),
        )
        first = chance.choice((0, 0, 0, count // 2))
        shown = chance.choice((count - first, count - first, 1, 64, count + 1))
        gather_variants.append((None, first, shown, *wanted))
        offsets = [chance.choice((0, 7, -1, (1 << 62) - 1, -(1 << 63))) for _ in range(3)]
        opaque = chance.choice((0, -1, 1 << 30, -(1 << 31)))
        variants.append((None, first, shown, *wanted, parts, opaque, *offsets))
    core = fuzzer.core
    found: list[Driven] = []
    # The units of one log are nothing to the others, so each variant has its own inputs.
    for number, units in enumerate(units_of_logs):
        inputs = [units, units[: len(units) // 2], units + units[:20]]
        found.append(
            Driven("answer_pull", core.answer_pull, [variants[number]], inputs, count=CALLS // 4)
        )
        found.append(
            Driven(
                "gather_records", core.gather_records, [gather_variants[number]], list(inputs),
                count=CALLS // 8,
            )
        )  # fmt: skip
    return found


def sends(fuzzer: Fuzzer) -> list[Driven]:
    """The encoders of sends and of copies."""
    chance = fuzzer.chance
    origin = bytes(36)
    variants: list[tuple[Any, ...]] = [
        (
            None, chance.choice((0, 0, 0, 0, 0, 1)), wrote,
            wrote + chance.choice((1 << 30, 1 << 30, 700)), 1 << 40, origin,
            chance.choice((1 << 22, 1 << 22, 10)), 0, 1 << 50, chance.random() < 0.9,
            chance.random() < 0.9, chance.choice((1, 1, 2)),
        )
        for wrote in [chance.choice((0, 1, 1 << 31, 1 << 62)) for _ in range(VARIANTS)]
    ]  # fmt: skip
    records = [b"".join(fuzzer.record() for _ in range(count)) for count in (1, 1, 1, 2, 5) * 8]
    copies = [
        (
            None, 0, wrote, wrote + chance.choice((1 << 30, 1 << 30, 700)), 1 << 40,
            chance.choice((1 << 40, 7)), chance.choice((1 << 22, 1 << 22, 10)), number % 2,
        )
        for number, wrote in enumerate([0, 1, 1 << 31, 1 << 62] * 6)
    ]  # fmt: skip
    found = [
        Driven("SendEncoder.encode", encoder.encode, variants, list(fuzzer.frames), is_framed=True)
        for encoder in fuzzer.encoders
    ]
    copier = fuzzer.copier.encode
    return [
        *found,
        Driven("CopyEncoder.encode", copier, copies, records[:24], is_framed=True),
        Driven("CopyEncoder.encode", copier, copies, records[24:]),
        Driven("read_pull", fuzzer.core.read_pull, [(None, 0)], list(fuzzer.pulls), is_framed=True),
    ]


def stored(fuzzer: Fuzzer) -> list[Driven]:
    """What reads records and index entries."""
    chance, core = fuzzer.chance, fuzzer.core
    logs = [bytes(log) for log, positions in (fuzzer.records() for _ in range(40)) if positions]
    single = [fuzzer.records()[0][:600] for _ in range(20)]
    known = {(topic, number): object() for topic in (b"t", b"\xff") for number in range(4)}
    scans = [
        (None, 0, START, chance.choice((1 << 62, START + 300)), number % 2, number % 3, known)
        for number in range(12)
    ]
    columns: list[tuple[Any, ...]] = []
    for number in range(VARIANTS):
        log, positions = fuzzer.records()
        while not positions:
            log, positions = fuzzer.records()
        sizes = [int.from_bytes(log[start : start + 4], "big") for start in positions]
        kinds = bytes(chance.choice((0, *range(2, 17))) for _ in range(chance.choice((1, 5, 16))))
        offsets = array("q", [7] * len(positions)) if number % 4 == 0 else None
        columns.append(
            (
                bytes(log),
                (
                    None, chance.choice((START, START, -1)), array("q", positions),
                    array("q", sizes), kinds, 0, offsets, -(1 << 63), (1 << 63) - 1,
                    chance.choice((None, frozenset((b"a", b"b")))), number % 2,
                ),
            )
        )  # fmt: skip
    entries = [chance.randbytes(20 * count) for count in (1, 3, 20)]
    plain = [fuzzer.client.record() for _ in range(40)]
    answers = [
        b"".join(fuzzer.client.answer(opaque) for opaque in range(count)) for count in (1, 1, 3, 9)
    ]

    def kept(*fields: Any) -> tuple[Any, ...]:
        return fields

    return [
        Driven("scan_records", core.scan_records, scans, logs + [bytes(log) for log in single]),
        Driven("walk_records", core.walk_records, [(None, 0, 1 << 20, 99)], logs),
        *(
            Driven("decode_columns", core.decode_columns, [arguments], [log], count=CALLS // 8)
            for log, arguments in columns
        ),
        Driven(
            "check_entries", core.check_entries,
            [(None, 0, 1, array("i", bytes(4 * slots)), 0, logs[0], START) for slots in (1, 7, 99)],
            entries,
        ),
        Driven("cut_messages", core.cut_messages, [(None, "queue", kept)],
               [*plain, b"".join(plain[:5])]),
        Driven("decode_record", core.decode_record, [(None, 0, kept)], plain, is_framed=True),
        Driven("record_body", core.record_body, [(None, 0)], plain, is_framed=True),
        Driven("record_property", core.record_property, [(None, 0, b"TAGS"), (None, 0, b"")],
               plain + logs, is_framed=True),
        *(
            Driven(
                "take_send_answers", core.take_send_answers,
                [(None, fuzzer.client.waiting(), [], fuzzer.client.token_type, kept)],
                answers, is_framed=len(answer) < 400, count=40,
            )
            for answer in answers * 4
        ),
    ]  # fmt: skip


def all_of(fuzzer: Fuzzer) -> list[Driven]:
    """Every entry point that takes bytes."""
    return [*pulls(fuzzer), *sends(fuzzer), *stored(fuzzer)]
