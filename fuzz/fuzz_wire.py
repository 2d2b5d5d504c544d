"""Give damaged frames, records and bodies to every decoder for some seconds.

    python fuzz/fuzz_wire.py --seconds 60 --seed 7

The inputs are the captured frames in tests/golden/wire with changes, so that the damage is deep
inside real structures.  Any outcome but a value or a RemoteProtocolError is a finding: it is
printed with the input as hex, and the run ends with status 1.  The same seed gives the same inputs
in the same order; ``--replay HEX --target NAME`` runs one input again.
"""

import argparse
import json
import lzma
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.header_registry import REQUEST_HEADERS, RESPONSE_HEADERS  # noqa: E402

from cometmq.codec.batch import decode_batch  # noqa: E402 - the path comes first
from cometmq.codec.compression import decompress  # noqa: E402
from cometmq.codec.consume_queue import encode_cq_ext_unit  # noqa: E402
from cometmq.codec.cq_ext import walk_cq_ext  # noqa: E402
from cometmq.codec.properties import decode_properties, find_property  # noqa: E402
from cometmq.codec.stored_message import decode_message, decode_messages_lenient  # noqa: E402
from cometmq.core.filter.consumer_filter import decode_filter_file  # noqa: E402
from cometmq.core.filter.sql92.expression import Expression  # noqa: E402
from cometmq.errors import ExpressionIllegal, RemoteProtocolError  # noqa: E402
from cometmq.wire.body import admin as admin_body  # noqa: E402
from cometmq.wire.body import client as client_body  # noqa: E402
from cometmq.wire.body import route as route_body  # noqa: E402
from cometmq.wire.command.command import RemotingCommand, encode_command  # noqa: E402
from cometmq.wire.command.fastjson import loads_lenient  # noqa: E402
from cometmq.wire.frame.connection import Connection  # noqa: E402
from cometmq.wire.frame.framing import FrameReader  # noqa: E402

INTERESTING = (b"\0", b"\x01", b"\x02", b"\x7f", b"\x80", b"\xff", b'"', b"{", b"}", b"[", b"\\")
INPUT_BYTES_MAX = 20_000


def read_commands(data: bytes) -> None:
    """Check that whole and divided bytes give the same commands; then decode every part."""
    whole = read_stream([data])
    half = read_stream([data[: len(data) // 2], data[len(data) // 2 :]])
    if [command.opaque for command in whole] != [command.opaque for command in half]:
        raise AssertionError("the same bytes in two pieces gave other commands")
    for command in whole:
        for read in readers_of(command):
            try:
                read()
            except RemoteProtocolError:
                continue


def read_stream(pieces: list[bytes]) -> list[RemotingCommand]:
    """Return the commands of a stream, up to its first error, as a transport gets them."""
    connection: Connection[RemotingCommand, None] = Connection(FrameReader())
    return [command for piece in pieces for command in connection.receive_data(piece)]


def readers_of(command: RemotingCommand) -> list[Callable[[], object]]:
    """Return the calls by which brokers and clients read a command."""
    readers: list[Callable[[], object]] = [
        lambda: encode_command(RemotingCommand.response(0, command.remark, command.ext_fields))
    ]
    for registry in (REQUEST_HEADERS, RESPONSE_HEADERS):
        kind = registry.get(command.code)
        if kind is not None:
            readers.append(lambda kind=kind: kind.from_command(command).to_ext())  # type: ignore[misc]
    return readers


def read_record(data: bytes) -> None:
    """Decode one record strictly and all records leniently."""
    messages, broken = decode_messages_lenient(data)
    size = sum(message.total_size for message in messages) + sum(item.size for item in broken)
    if size != len(data):
        raise AssertionError("the lenient reader lost bytes")
    decode_message(data, check_crc=True)


def read_properties(data: bytes) -> None:
    """Check that both readers of properties agree."""
    value = find_property(data, b"TAGS")
    expected = decode_properties(data).get("TAGS")
    if (None if value is None else value.decode("utf-8", "replace")) != expected:
        raise AssertionError("find_property and decode_properties disagree")


def read_filter(data: bytes) -> None:
    """Check that a text is a filter or ExpressionIllegal; a filter answers every message."""
    try:
        expression = Expression(data.decode("utf-8", "replace"))
    except ExpressionIllegal:
        return
    expression.matches({})
    expression.matches(dict.fromkeys(expression.properties, "5"))


TARGETS: dict[str, Callable[[bytes], object]] = {
    "frames": read_commands,
    "record": read_record,
    "properties": read_properties,
    "batch": decode_batch,
    "zlib": lambda data: decompress(data, 0x301, 1_000_000),
    "lz4": lambda data: decompress(data, 0x101, 1_000_000),
    "zstd": lambda data: decompress(data, 0x201, 1_000_000),
    "json": loads_lenient,
    "heartbeat": client_body.HeartbeatData.decode,
    "lock": client_body.LockBatchRequest.decode,
    "reset": client_body.ResetOffsetBody.decode,
    "running": client_body.ConsumerRunningInfo.decode,
    "route": route_body.decode_topic_route,
    "register": route_body.decode_register_broker_body,
    "compressed": lambda data: route_body.decode_register_broker_body(data, compressed=True),
    "groups": admin_body.decode_group_config_wrapper,
    "stats": admin_body.decode_consume_stats,
    "offsets": admin_body.decode_consumer_offsets,
    "filters": decode_filter_file,
    "extension": lambda data: list(walk_cq_ext(data)),
    "sql": read_filter,
}

FILTER_SEEDS: tuple[bytes, ...] = (
    b"a > 5 AND b = 'x' OR NOT (c BETWEEN 1 AND 2.5e3 AND d IN ('it''s', ''))",
    b"a IS NOT NULL -- why\n AND 'x' <> b /* * */ OR c NOT CONTAINS 'z' = TRUE",
    b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":{"bloomFilterData":{"bitNum":112,"bitPos":'
    b'[35,14,105]},"bornTime":1,"clientVersion":2,"consumerGroup":"G","dead":true,"deadTime":3,'
    b'"expression":"a > 5","expressionType":"SQL92","topic":"T"}},"topic":"T"}}}',
    encode_cq_ext_unit(7, 1, bytes(14)) + encode_cq_ext_unit(8, 2) + b"\xff\xff",
)


def load_seeds() -> list[bytes]:
    """The captured frames and their bodies."""
    seeds: list[bytes] = []
    for path in sorted((ROOT / "tests" / "golden" / "wire").glob("*/*.jsonl.xz")):
        for line in lzma.decompress(path.read_bytes()).decode().splitlines():
            frame = bytes.fromhex(json.loads(line)["hex"])
            seeds.append(frame[:INPUT_BYTES_MAX])
            body = frame[8 + int.from_bytes(frame[5:8], "big") :]
            if body:
                seeds.append(body[:INPUT_BYTES_MAX])
    return [*seeds, *FILTER_SEEDS * max(1, len(seeds) // 40)]


def spoil(data: bytes, chance: random.Random, seeds: list[bytes]) -> bytes:
    """The input with a few random changes."""
    spoilt = bytearray(data)
    for _ in range(chance.randint(1, 4)):
        position = chance.randrange(len(spoilt) + 1)
        kind = chance.randrange(6)
        if kind == 0 and spoilt:
            spoilt[position - 1] = chance.randrange(256)
        elif kind == 1:
            spoilt[position:position] = chance.choice(INTERESTING) * chance.randint(1, 4)
        elif kind == 2:
            del spoilt[position : position + chance.randint(1, 16)]
        elif kind == 3:
            size = chance.choice([1, 2, 4, 8])
            number = chance.choice(
                [0, 1, -1, 2**31 - 1, -(2**31), len(spoilt), chance.getrandbits(16)]
            )
            spoilt[position : position + size] = (number % 2 ** (8 * size)).to_bytes(size, "big")
        elif kind == 4:
            other = chance.choice(seeds)
            start = chance.randrange(len(other))
            spoilt[position:position] = other[start : start + chance.randint(1, 64)]
        else:
            spoilt = spoilt[:position]
    return bytes(spoilt[: 2 * INPUT_BYTES_MAX])


def fault_of(name: str, data: bytes) -> str | None:
    """Return None if the decoder raised nothing but RemoteProtocolError, else the traceback."""
    try:
        TARGETS[name](data)
    except RemoteProtocolError:
        return None
    except Exception:
        return traceback.format_exc()
    return None


def run(seconds: float, seed: int, only: str | None) -> dict[str, Any]:
    """Try inputs until the time is over or one is a finding."""
    chance = random.Random(seed)
    seeds = load_seeds()
    names = [only] if only else sorted(TARGETS)
    deadline = time.monotonic() + seconds
    slowest = 0.0
    count = 0
    while time.monotonic() < deadline:
        data = spoil(chance.choice(seeds), chance, seeds)
        name = chance.choice(names)
        start = time.monotonic()
        finding = fault_of(name, data)
        slowest = max(slowest, time.monotonic() - start)
        count += 1
        if finding is not None:
            print(f"target {name}, input {data.hex()}\n{finding}", file=sys.stderr)
            return {"inputs": count, "seed": seed, "target": name, "ok": False}
    return {"inputs": count, "seed": seed, "slowest_ms": round(slowest * 1000, 1), "ok": True}


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=10)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--target", choices=sorted(TARGETS))
    parser.add_argument("--replay", metavar="HEX", help="run one input again")
    options = parser.parse_args()
    if options.replay is not None:
        finding = fault_of(options.target or "frames", bytes.fromhex(options.replay))
        print(finding or "ok")
        return 1 if finding else 0
    result = run(options.seconds, options.seed, options.target)
    print(json.dumps(result))
    return 0 if result["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
