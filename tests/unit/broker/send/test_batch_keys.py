"""Keys of batches: the same for all messages at once as for each alone."""

from __future__ import annotations

from hypothesis import example, given
from hypothesis import strategies as st

from cometmq.broker.send.batch_keys import BatchKeysReader, keys_of_text
from cometmq.codec.java_hash import tags_code

names = st.sampled_from(
    ["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "own", "KEYSX", "DELAY", "", "TAGS\x01", "a.b*", "\x03"]
)
values = st.sampled_from(["", "v", "k1 k2", "\x01", "\x03", "ü", "\N{GRINNING FACE}", "TAGS"])
entries = st.lists(st.tuples(names, values), max_size=5)
strings = st.builds(
    lambda pairs, end: "\x02".join([f"{name}\x01{value}" for name, value in pairs]) + end,
    entries,
    st.sampled_from(["\x02", "\x02", "", "\x02\x02"]),
).map(str.encode)


def alone(properties: list[bytes]) -> tuple[list[int], list[tuple[str | None, ...]]]:
    keys = [keys_of_text(one.decode("utf-8", "replace")) for one in properties]
    return [tags_code(tags) for _, _, tags in keys], list(keys)


@given(st.lists(strings | st.binary(max_size=20), min_size=1, max_size=6))
@example([b"KEYS\x01a\x02UNIQ_KEY\x01b", b"KEYS\x01a\x02UNIQ_KEY\x01b\x02"])
@example([b"KEYS\x01a\x03KEYS\x01x\x02UNIQ_KEY\x01b\x02", b"\x02"])
def test_any_strings_give_what_each_gives_alone(properties: list[bytes]) -> None:
    """Whatever the strings are, also when their names come for the second and third time."""
    reader = BatchKeysReader()
    for _ in range(3):
        assert reader.read(properties) == alone(properties)


@given(
    st.permutations(["UNIQ_KEY", "KEYS", "TAGS", "WAIT", "own.*"]),
    st.integers(1, 5),
    st.lists(st.lists(values, min_size=5, max_size=5), min_size=1, max_size=8),
)
def test_strings_of_one_producer(order: list[str], width: int, rows: list[list[str]]) -> None:
    """The same names in the same order, with any values."""
    reader = BatchKeysReader()
    properties = [
        "".join(
            f"{name}\x01{value}\x02" for name, value in zip(order[:width], row, strict=False)
        ).encode()
        for row in rows
    ]
    for _ in range(3):
        assert reader.read(properties) == alone(properties)


def test_ever_new_names_take_no_memory() -> None:
    """A producer whose names never repeat is served too."""
    reader = BatchKeysReader()
    for number in range(2_000):
        batch_keys = reader.read([b"n%d\x011\x02TAGS\x01t\x02" % number])
        assert batch_keys.keys == [(None, None, "t")]
    assert len(reader._cuts) <= 256
