"""Recall handles: many at once are what each is alone."""

from __future__ import annotations

import pytest

from cometmq.codec.recall import (
    RecallHandle,
    decode_recall_handle,
    encode_recall_handle,
    encode_recall_handles,
    recall_handle_head,
)
from cometmq.errors import CodecError

HANDLES = {
    "one": [RecallHandle("t", "broker-a", 1_790_000_000_001, "0" * 32)],
    "filled up by one byte": [RecallHandle("to", "b", 1_001, f"{n:033}") for n in range(5)],
    "filled up by two bytes": [RecallHandle("to", "b", 1_001, f"{n:032}") for n in range(5)],
    "filled up by none": [RecallHandle("to", "b", 1_001, f"{n:034}") for n in range(5)],
    "of two lengths": [RecallHandle("t" * n, "b", 1_001, "K") for n in (1, 2, 3, 2)],
    "beyond ASCII": [RecallHandle("t", "bröker", 1_001, f"K{n}") for n in range(3)],
}


@pytest.mark.parametrize("name", HANDLES)
def test_handles_made_together_are_those_made_alone(name: str) -> None:
    """Of equal lengths with all kinds of padding, of different ones, and of other alphabets."""
    handles = HANDLES[name]
    texts = [
        f"{recall_handle_head(one.topic, one.broker_name)}{one.time_ms} {one.uniq_key}"
        for one in handles
    ]
    made = encode_recall_handles(texts)
    assert made == [encode_recall_handle(one) for one in handles]
    assert [decode_recall_handle(text) for text in made] == handles


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("no base64!", "is not URL-safe base64"),
        ("djI=", "1 fields of version 'v2'"),
        ("djEgdCBiIHNvb24gSw==", "its time is 'soon'"),
    ],
)
def test_what_is_no_handle_is_refused(text: str, words: str) -> None:
    """The text says which part is wrong."""
    with pytest.raises(CodecError, match=words):
        decode_recall_handle(text)
