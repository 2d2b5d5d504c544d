"""Rows laid out by columns are the bytes that rows laid out one by one are."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pytest

from cometmq.arrow.encode import encode_rows
from cometmq.client.message.send_codec import SendCodec
from cometmq.codec.batch import decode_batch, encode_batch
from cometmq.codec.properties import PROPERTIES_BYTES_MAX
from cometmq.model.message import Message

COUNT = 500
BLOCK = 8_000
LIMIT = 1 << 20


def one_by_one(
    ids: list[str], bodies: list[bytes], tags: list[str | None], keys: list[str | None]
) -> list[tuple[int, bytes, bytes]]:
    """What a producer makes of the same messages."""
    left = iter(ids)
    codec = SendCodec("G", lambda: next(left), lambda: 0)
    return [
        codec.batch_item(Message("T", body, tags=tag, keys=key or ()))[0]
        for body, tag, key in zip(bodies, tags, keys, strict=True)
    ]


def encoded(bodies: Any, tags: Any = None, keys: Any = None, **more: Any) -> Any:
    """Blocks of these rows, or None."""
    settings = {"message_bytes_max": LIMIT, "block_bytes": BLOCK, **more}
    ids = [f"{number:032X}" for number in range(len(bodies))]
    return encode_rows(bodies, ids, tags=tags, keys=keys, **settings)


def test_the_same_bytes() -> None:
    """Bodies of any length, tags in any script, keys or none; arrays that are cut out of others."""
    chance = random.Random(9)
    bodies = [chance.randbytes(chance.randint(1, 400)) for _ in range(COUNT)]
    tags = [chance.choice([None, "", "A", "täg 标签", "B"]) for _ in range(COUNT)]
    keys = [chance.choice([None, "", f"order-{n}"]) for n in range(COUNT)]
    cut = slice(17, 480)
    arrays = (pa.array(bodies), pa.array(tags, pa.string()), pa.array(keys, pa.string()))
    blocks = list(encoded(*(one[cut] for one in arrays)))
    ids = [f"{number:032X}" for number in range(480 - 17)]
    wanted = one_by_one(ids, bodies[cut], tags[cut], keys[cut])
    assert b"".join(data for data, _ in blocks) == encode_batch(wanted)
    assert [len(decode_batch(data)) for data, _ in blocks] == [rows for _, rows in blocks]
    assert len(blocks) > 5
    assert all(len(data) <= BLOCK for data, _ in blocks)


def test_a_row_larger_than_a_block_is_one() -> None:
    """Its neighbours are not lost, and it is not cut."""
    bodies = pa.array([b"a", b"b" * 20_000, b"c"])
    assert [rows for _, rows in encoded(bodies)] == [1, 1, 1]


@pytest.mark.parametrize(
    ("bodies", "more"),
    [
        ([b"x", None], {}),
        ([], {}),
        ([b"x"], {"tags": ["a\x01b"]}),
        ([b"x"], {"tags": ["a\x02"]}),
        ([b"x"], {"keys": ["two keys"]}),
        ([b"x"], {"keys": ["\u2003wide"]}),
        ([b"x"], {"tags": ["t" * (PROPERTIES_BYTES_MAX + 1)]}),
        ([b"x" * 100], {"message_bytes_max": 120}),
    ],
)
def test_odd_rows_are_left_to_others(bodies: list[bytes | None], more: dict[str, Any]) -> None:
    """Nothing is guessed: whoever looks at single rows says what is wrong with which."""
    arrays = {
        name: pa.array(value, pa.string()) if isinstance(value, list) else value
        for name, value in more.items()
    }
    assert encoded(pa.array(bodies, pa.binary()), **arrays) is None
