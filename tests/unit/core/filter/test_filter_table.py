"""Registered filters, their bits, and their file."""

import pytest

from cometmq.codec.consume_queue import CqExtUnit
from cometmq.core.filter.bloom_filter import BloomFilter, BloomKey
from cometmq.core.filter.consumer_filter import (
    ConsumerFilter,
    decode_filter_file,
    encode_filter_file,
)
from cometmq.core.filter.filter_table import FilterTable
from cometmq.errors import CodecError, ConfigError, ExpressionIllegal
from cometmq.model.group import SubscriptionData


def table_with(text: str = "a > 5", version: int = 10, now_ms: int = 1_000) -> FilterTable:
    """One filter, of group G and topic T."""
    table = FilterTable(BloomFilter())
    assert table.register("T", "G", text, version, now_ms)
    return table


def wanted(table: FilterTable) -> ConsumerFilter:
    """That filter."""
    found = table.get("T", "G")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("key", "positions"),
    [
        ("group#topic", (79, 21, 21)),
        ("CID_test#TopicTest", (47, 102, 45)),
        ("G#T", (24, 26, 83)),
    ],
)
def test_bits_of_known_keys(key: str, positions: tuple[int, ...]) -> None:
    """What RocketMQ's class gives; keys of all lengths are asked of it in tests/interop."""
    assert BloomFilter().key_of(key) == BloomKey(112, positions)


def test_sizes_of_a_bloom_filter() -> None:
    """Bits per group and per bitmap, and the settings that are none."""
    sizes = {(20, 32): (3, 112), (10, 128): (4, 616), (20, 64): (3, 216)}
    for settings, expected in sizes.items():
        bloom = BloomFilter(*settings)
        assert (bloom.hash_count, bloom.bit_count) == expected
    for settings, word in (((0, 32), "1 to 99"), ((100, 32), "1 to 99"), ((20, 0), "1 or more")):
        with pytest.raises(ConfigError, match=word):
            BloomFilter(*settings)
    with pytest.raises(ConfigError, match="lower the first"):
        BloomFilter(1, 1_000_000)


def test_a_bitmap_of_other_settings_says_perhaps() -> None:
    """Only a bitmap of the right size can say no."""
    bloom = BloomFilter()
    key = bloom.key("G", "T")
    assert bloom.is_hit(key, bloom.bitmap([key]))
    assert not bloom.is_hit(key, bytes(14))
    assert bloom.is_hit(key, b"")
    assert bloom.is_hit(key, bytes(13))
    assert bloom.is_hit(BloomKey(216, key.positions), bytes(14))
    assert not bloom.is_valid(None)
    assert not bloom.is_valid(BloomKey(112, (1, 2)))
    assert not bloom.is_valid(BloomKey(112, (1, 2, 112)))
    assert bloom.is_valid(BloomKey(112, (1, 2, 3)))
    assert BloomKey(112, (1, 2, 3)).mask == 0b1110
    for hostile in (BloomKey(2**40, (2**39, 1, 2)), BloomKey(112, (2**39, -1, 112))):
        assert hostile.mask == 0
        assert not bloom.is_valid(hostile)


def test_a_newer_version_replaces_and_begins_anew() -> None:
    """What changed cannot trust older bitmaps; what did not change can."""
    table = table_with()
    first = wanted(table)
    assert not table.register("T", "G", "a > 6", 9, 2_000)
    assert not table.register("T", "G", "a > 5", 10, 2_000)
    assert wanted(table) is first
    assert table.register("T", "G", "a > 5", 11, 3_000)
    assert (wanted(table).client_version, wanted(table).born_ms) == (11, 1_000)
    assert table.register("T", "G", "a > 6", 12, 4_000)
    assert (wanted(table).text, wanted(table).born_ms) == ("a > 6", 4_000)


def test_a_broken_filter_forgets_the_one_before() -> None:
    """A group must not go on with what it no longer wants."""
    table = table_with()
    revision = table.revision
    with pytest.raises(ExpressionIllegal):
        table.register("T", "G", "a >", 11, 2_000)
    assert table.get("T", "G") is None
    assert table.revision > revision
    with pytest.raises(ExpressionIllegal):
        table.register("T", "G", "a >", 12, 2_000)
    assert list(table) == []
    assert table.bitmap("T", {"a": "6"}) is None


def test_consumers_go_and_come_back() -> None:
    """The same filter lives on; bitmaps were made for it all the time."""
    table = table_with()
    table.unregister("other", 1_500)
    assert not wanted(table).is_dead
    table.unregister("G", 2_000)
    assert wanted(table).is_dead
    revision = table.revision
    table.unregister("G", 2_500)
    assert (wanted(table).dead_ms, table.revision) == (2_000, revision)
    assert table.bitmap("T", {"a": "6"}) == table.bloom.bitmap([table.bloom.key("G", "T")])
    assert table.register("T", "G", "a > 5", 10, 3_000)
    assert (wanted(table).dead_ms, wanted(table).born_ms) == (0, 1_000)


def test_the_dead_are_forgotten_after_a_day() -> None:
    """And their topic with the last of them."""
    table = table_with()
    assert table.forget(now_ms=10**9, after_ms=86_400_000) == 0
    table.unregister("G", 2_000)
    assert table.forget(2_000 + 86_399_999, 86_400_000) == 0
    assert table.forget(2_000 + 86_400_000, 86_400_000) == 1
    assert list(table) == []
    assert table.bitmap("T", {}) is None


def test_a_heartbeat_names_all_subscriptions() -> None:
    """Faults come back, tags are no filters, what is not named any more is dead."""
    table = table_with()
    faults = table.register_group(
        "G",
        [
            SubscriptionData("T2", "b = 'x'", sub_version=20, expression_type="SQL92"),
            SubscriptionData("T3", "b = ", sub_version=20, expression_type="SQL92"),
            SubscriptionData("T4", "tag"),
        ],
        2_000,
    )
    assert [fault.column for fault in faults] == [5]
    assert [(one.topic, one.is_dead) for one in table] == [("T", True), ("T2", False)]


def test_a_bitmap_says_no_only_about_messages_after_the_filter() -> None:
    """Perhaps for everything a bitmap cannot know."""
    table = table_with()
    filter_ = wanted(table)
    hit = table.bitmap("T", {"a": "6"})
    miss = table.bitmap("T", {"a": "5"})
    assert hit is not None
    assert miss == bytes(14)
    assert table.may_match(filter_, CqExtUnit(0, 1_001, hit))
    assert not table.may_match(filter_, CqExtUnit(0, 1_001, miss))
    assert table.may_match(filter_, CqExtUnit(0, 1_000, miss))
    assert table.may_match(filter_, CqExtUnit(0, 1_001, b""))
    assert table.may_match(filter_, None)
    filter_.expression = None
    assert table.may_match(filter_, CqExtUnit(0, 1_001, miss))
    assert table.bitmap("T", {"a": "6"}) == miss


def test_filters_survive_a_restart_as_dead_ones() -> None:
    """Through the file; another size of bitmap makes all of them worthless."""
    table = table_with("a = '\u84dd\"\\'", now_ms=1_000)
    table.register("T", "H", "b IS NULL", 5, 90_000)
    raw = encode_filter_file(table)
    loaded = FilterTable(BloomFilter())
    assert loaded.load(decode_filter_file(raw), now_ms=100_000)
    assert [(one.group, one.dead_ms) for one in loaded] == [("G", 70_000), ("H", 90_000)]
    assert wanted(loaded).text == wanted(table).text
    assert loaded.register("T", "G", wanted(table).text, 10, 101_000)
    assert (wanted(loaded).born_ms, wanted(loaded).is_dead) == (1_000, False)
    other = FilterTable(BloomFilter(20, 64))
    assert not other.load(decode_filter_file(raw), now_ms=100_000)
    assert list(other) == []


def test_files_of_other_shapes() -> None:
    """Empty ones, filters that only Java takes, and what is no such file."""
    assert decode_filter_file(b"{}") == []
    assert encode_filter_file([]) == b'{\n\t"filterDataByTopic":{}\n}'
    entry = b'{"filterDataByTopic":{"T":{"groupFilterData":{"G":%s}}}}'
    (lax,) = decode_filter_file(entry % b'{"expression":"a = 1 garbage","expressionType":"SQL92"}')
    assert (lax.topic, lax.group, lax.expression, lax.key) == ("T", "G", None, None)
    (other,) = decode_filter_file(entry % b'{"expression":"x","expressionType":"LUA"}')
    assert other.expression is None
    assert b'"LUA"' in encode_filter_file([other])
    assert decode_filter_file(entry % b"null") == []
    for bad in (b"[]", b"{", b'{"filterDataByTopic":5}', entry % b"5"):
        with pytest.raises(CodecError, match="consumerFilter"):
            decode_filter_file(bad)
    with pytest.raises(CodecError, match="bitPos"):
        decode_filter_file(entry % b'{"bloomFilterData":{"bitNum":8,"bitPos":["x"]}}')


def test_bitmaps_of_property_strings() -> None:
    """The same bits as by decoded properties, picked where few matter and decoded where many do."""
    table = table_with("a > 5")
    assert table.register("T", "H", " AND ".join(f"p{n} = '1'" for n in range(6)), 10, 1_000)
    wide = table.bitmaps_of("T")
    assert wide(b"a\x019\x02") == table.bitmap("T", {"a": "9"})
    narrow = table_with("a > 5")
    assert narrow.bitmaps_of("T")(b"a\x019\x02b\x01x\x02") == narrow.bitmap("T", {"a": "9"})
    assert not any(narrow.bitmaps_of("T")(b"a\x011\x02"))


def test_a_dead_filter_of_a_file_stays_as_dead_as_it_was() -> None:
    """Only those that lived at the end die at the load; a topic nobody filters is known as such."""
    entry = wanted(table_with())
    entry.dead_ms = 5
    table = FilterTable(BloomFilter())
    assert table.load([entry], 9_000)
    assert wanted(table).dead_ms == 5
    assert table.is_filtered("T")
    assert not table.is_filtered("U")
