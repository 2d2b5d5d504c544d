"""Every layout writes and reads all values, and refuses other bytes with a CodecError."""

from hypothesis import assume, given
from hypothesis import strategies as st

from cometmq.codec.batch import decode_batch, encode_batch
from cometmq.codec.compression import LZ4, ZLIB, ZSTD, compress, decompress
from cometmq.codec.ids import (
    decode_host,
    decode_offset_message_id,
    encode_host,
    offset_message_id,
)
from cometmq.codec.java_hash import java_hash
from cometmq.codec.properties import (
    decode_properties,
    encode_properties,
    find_property,
    remove_property,
)
from cometmq.codec.stored_message import (
    StoredMessage,
    decode_message,
    decode_messages_lenient,
    encode_message,
    read_record_header,
)
from cometmq.errors import CodecError

INT32 = st.integers(-(2**31), 2**31 - 1)
INT64 = st.integers(-(2**63), 2**63 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), max_size=20)
NAMES = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8
)
PROPERTIES = st.dictionaries(NAMES, TEXT, max_size=6)
V4_HOSTS = st.tuples(st.ip_addresses(v=4), st.integers(0, 65535)).map(
    lambda host: encode_host(f"{host[0]}:{host[1]}")
)
V6_HOSTS = st.tuples(st.ip_addresses(v=6), st.integers(0, 65535)).map(
    lambda host: encode_host(f"[{host[0]}]:{host[1]}")
)


@st.composite
def records(draw: st.DrawFn) -> bytes:
    """Draw the bytes of a record that our writer can write."""
    sys_flag = draw(INT32)
    return encode_message(
        draw(st.text(st.characters(exclude_categories=["Cs"]), max_size=60)),
        draw(st.binary(max_size=100)),
        encode_properties(draw(PROPERTIES)),
        queue_id=draw(INT32),
        flag=draw(INT32),
        queue_offset=draw(INT64),
        physical_offset=draw(INT64),
        sys_flag=sys_flag,
        born_timestamp_ms=draw(INT64),
        born_host=draw(V6_HOSTS if sys_flag & 0x10 else V4_HOSTS),
        store_timestamp_ms=draw(INT64),
        store_host=draw(V6_HOSTS if sys_flag & 0x20 else V4_HOSTS),
        reconsume_times=draw(INT32),
        prepared_transaction_offset=draw(INT64),
    )


@given(st.text())
def test_hash_is_the_sum_over_utf16_units(text: str) -> None:
    """The ASCII path and the general path of the hash agree with the definition."""
    expected = 0
    raw = text.encode("utf-16-be", "surrogatepass")
    for position in range(0, len(raw), 2):
        expected = (31 * expected + int.from_bytes(raw[position : position + 2], "big")) % 2**32
    assert java_hash(text) % 2**32 == expected
    assert -(2**31) <= java_hash(text) < 2**31


@given(PROPERTIES)
def test_properties_come_back(properties: dict[str, str]) -> None:
    """All properties come back but those with empty values, which readers drop."""
    raw = encode_properties(properties)
    kept = {name: value for name, value in properties.items() if value}
    assert decode_properties(raw) == decode_properties(raw[:-1]) == kept
    for name in properties:
        found = find_property(raw, name.encode())
        assert (None if found is None else found.decode()) == kept.get(name)
        assert name not in decode_properties(remove_property(raw, name.encode()))


@given(st.lists(st.sampled_from([b"a", b"KEYS", b"\x01", b"\x02", b"x", b""]), max_size=20))
def test_finding_and_decoding_agree_on_any_bytes(parts: list[bytes]) -> None:
    """The search for one property and the full decoder agree on any bytes."""
    raw = b"".join(parts)
    decoded = decode_properties(raw)
    for name in ("a", "KEYS", "x", "xa"):
        found = find_property(raw, name.encode())
        assert (None if found is None else found.decode()) == decoded.get(name)


@given(records(), st.binary(max_size=8))
def test_records_come_back(record: bytes, prefix: bytes) -> None:
    """A record comes back from any position, with each field anywhere in its range."""
    message = decode_message(prefix + record + prefix, len(prefix), check_crc=True)
    assert message.encode() == record
    assert read_record_header(record).total_size == len(record)
    messages, broken = decode_messages_lenient(record * 3)
    assert (len(messages), broken) == (3, [])


@given(records(), st.data())
def test_spoilt_records_decode_or_are_refused(record: bytes, data: st.DataObject) -> None:
    """A record with a changed byte or a cut end gives a message or a CodecError, nothing else."""
    position = data.draw(st.integers(0, len(record) - 1))
    spoilt = bytearray(record)
    spoilt[position] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(record)))
    for raw in (bytes(spoilt), record[:cut]):
        outcome = outcome_of_record(raw)
        assert outcome is None or outcome.encode() is not None
        messages, broken = decode_messages_lenient(raw)
        covered = sum(message.total_size for message in messages)
        assert covered + sum(item.size for item in broken) == len(raw)


def outcome_of_record(raw: bytes) -> StoredMessage | None:
    """Return the message, or None when the decoder raised CodecError."""
    try:
        return decode_message(raw, check_crc=True)
    except CodecError:
        return None


@given(st.binary(max_size=300))
def test_any_bytes_are_a_record_or_refused(raw: bytes) -> None:
    """The lenient reader accounts for every byte."""
    assert outcome_of_record(raw) is None or raw
    messages, broken = decode_messages_lenient(raw)
    covered = sum(message.total_size for message in messages)
    assert covered + sum(item.size for item in broken) == len(raw)


@given(st.lists(st.tuples(INT32, st.binary(max_size=50), st.binary(max_size=50)), min_size=1))
def test_batches_come_back(items: list[tuple[int, bytes, bytes]]) -> None:
    """A batch comes back with any flags, bodies and property bytes."""
    raw = encode_batch(items)
    assert decode_batch(raw) == items
    for cut in (1, 5, 21):
        if cut < len(raw):
            shorter = batch_or_none(raw[:-cut])
            assert shorter is None or shorter == items[: len(shorter)]


def batch_or_none(raw: bytes) -> list[tuple[int, bytes, bytes]] | None:
    """Return the items, or None when the decoder raised CodecError."""
    try:
        return decode_batch(raw)
    except CodecError:
        return None


@given(st.binary(max_size=200))
def test_any_bytes_are_a_batch_or_refused(raw: bytes) -> None:
    """An accepted batch is written again to equal bytes, apart from magic and CRC."""
    items = batch_or_none(raw)
    assert items is None or len(encode_batch(items)) == len(raw)


@given(st.binary(max_size=500), st.sampled_from([ZLIB, LZ4, ZSTD]), st.data())
def test_compression_comes_back_and_spoilt_data_is_refused(
    body: bytes, kind: str, data: st.DataObject
) -> None:
    """A changed byte gives the same body, another body within the limit, or a CodecError."""
    packed, flag = compress(body, kind)
    assert decompress(packed, flag, 500) == body
    assume(packed)
    spoilt = bytearray(packed)
    spoilt[data.draw(st.integers(0, len(packed) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        plain = decompress(bytes(spoilt), flag, 1000)
    except CodecError:
        plain = b""
    assert len(plain) <= 1000


@given(V4_HOSTS | V6_HOSTS, st.integers(0, 2**63 - 1))
def test_hosts_and_offset_ids_come_back(host: bytes, physical_offset: int) -> None:
    """An offset id gives back the address and the position that made it."""
    address = decode_host(host)
    assert encode_host(address) == host
    assert decode_offset_message_id(offset_message_id(host, physical_offset)) == (
        address,
        physical_offset,
    )
