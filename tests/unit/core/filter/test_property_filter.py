"""SQL92 filters over stored records: by registered filters, by a pull's text, in retry topics."""

import pytest

from cometmq.codec.properties import encode_properties
from cometmq.core.filter import property_filter
from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.consumer_filter import ConsumerFilter
from cometmq.core.filter.filter_table import FilterTable
from cometmq.core.filter.property_filter import PropertyFilter, RetryFilter
from cometmq.errors import CodecError


@pytest.fixture(autouse=True)
def bare_records(monkeypatch: pytest.MonkeyPatch) -> None:
    """A record is its property string; one that begins with ! cannot be read."""

    def read(record: memoryview) -> bytes:
        if bytes(record[:1]) == b"!":
            raise CodecError("damaged")
        return bytes(record)

    monkeypatch.setattr(property_filter, "properties_of", read)


def record(**properties: str) -> memoryview:
    """A record with these properties."""
    raw = encode_properties(properties)
    return memoryview(raw if isinstance(raw, bytes) else raw.encode())


def registered(text: str) -> ConsumerFilter:
    """The filter of group G over topic T."""
    table = FilterTable(BloomFilter())
    assert table.register("T", "G", text, 1, 1_000)
    entry = table.get("T", "G")
    assert entry is not None
    return entry


def test_a_registered_filter_has_a_hint() -> None:
    """Its bits in the bitmap of an extension unit; without a key there are none."""
    entry = registered("a = 'x'")
    made = PropertyFilter.of(entry)
    assert made is not None
    assert made.hint is not None
    assert made.hint.positions == tuple(entry.key.positions) if entry.key else False
    entry.key = None
    bare = PropertyFilter.of(entry)
    assert bare is not None
    assert bare.hint is None
    entry.expression = None
    assert PropertyFilter.of(entry) is None


def test_records() -> None:
    """Few properties are picked, many decoded; a record that cannot be read does not match."""
    few = PropertyFilter.of_text("a = 'x'")
    assert few.needles
    assert few.matches(record(a="x", b="y"))
    assert not few.matches(record(a="y"))
    assert not few.matches(memoryview(b"!"))
    assert few.matches(record(b="y" * 2_000, a="x"))
    assert not few.matches(record(b="y" * 2_000))
    many = PropertyFilter.of_text(" AND ".join(f"p{number} = '1'" for number in range(6)))
    assert many.matches(record(**{f"p{number}": "1" for number in range(6)}))
    assert not many.matches(record(p0="1"))


def test_retry_topics() -> None:
    """The filter of the topic a message came from; what nobody filters is wanted."""
    entry = registered("a = 'x'")
    retry = RetryFilter({"T": entry}.get)
    assert retry.matches(record(RETRY_TOPIC="T", a="x"))
    assert not retry.matches(record(RETRY_TOPIC="T", a="y"))
    assert retry.matches(record(RETRY_TOPIC="U", a="y"))
    assert retry.matches(memoryview(b"!"))
    entry.expression = None
    assert retry.matches(record(RETRY_TOPIC="T", a="y"))
