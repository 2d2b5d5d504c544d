"""Host fields, offset message ids and unique ids."""

import pytest

from cometmq.codec.ids import (
    UniqIdFactory,
    decode_host,
    decode_offset_message_id,
    encode_host,
    offset_message_id,
    offset_message_id_prefix,
    offset_message_ids,
)
from cometmq.errors import CodecError, LocalProtocolError


@pytest.mark.parametrize(
    ("address", "raw"),
    [
        ("10.0.0.2:10911", "0a00000200002a9f"),
        ("255.255.255.255:65535", "ffffffff0000ffff"),
        ("0.0.0.0:0", "0000000000000000"),
        ("[::1]:10911", "0000000000000000000000000000000100002a9f"),
    ],
)
def test_hosts_both_ways(address: str, raw: str) -> None:
    """The port is a 4-byte integer (T9)."""
    assert encode_host(address).hex() == raw
    assert decode_host(bytes.fromhex(raw)) == address


@pytest.mark.parametrize("address", ["", "1.2.3.4", "localhost:1", "1.2.3.4:x", "1.2.3.4:65536"])
def test_what_is_no_address_is_refused(address: str) -> None:
    """Names must be resolved before they are stored."""
    with pytest.raises(LocalProtocolError):
        encode_host(address)


def test_host_fields_have_two_sizes() -> None:
    """Nothing else is a host."""
    with pytest.raises(CodecError, match="8 or 20"):
        decode_host(b"123456")


def test_offset_ids_both_ways() -> None:
    """docs/internals/protocol.md#test-vectors, vector 4."""
    host = encode_host("10.0.0.2:10911")
    assert offset_message_id(host, 1000) == "0A00000200002A9F00000000000003E8"
    assert offset_message_id_prefix(host) == "0A00000200002A9F"
    assert decode_offset_message_id("0A00000200002A9F00000000000003E8") == (
        "10.0.0.2:10911",
        1000,
    )
    wide = offset_message_id(encode_host("[2001:db8::1]:10911"), 5)
    assert len(wide) == 56
    assert decode_offset_message_id(wide) == ("[2001:db8::1]:10911", 5)


@pytest.mark.parametrize(
    "text",
    ["", "0", "0A00", "0A00000200002A9F00000000000003EZ", "0A 0000200002A9F00000000000003E8"],
)
def test_what_is_no_offset_id_is_refused(text: str) -> None:
    """Users paste anything into a query by id."""
    with pytest.raises(CodecError, match="no offset message id"):
        decode_offset_message_id(text)


NOW_MS = 1_795_264_279_777  # 2026-11-21 12:31:19.777 UTC


def test_unique_ids_hold_address_pid_seed_time_and_counter() -> None:
    """The layout of Java's MessageClientIDSetter."""
    now = [NOW_MS]
    factory = UniqIdFactory("10.77.0.2", 0x12345, 0x18B4AAC2, lambda: now[0])
    first, second = factory.next_id(), factory.next_id()
    assert first[:20] == "0A4D0002234518B4AAC2"
    assert len(first) == 32
    assert (first[28:], second[28:]) == ("0000", "0001")
    # 20 days, 12:31:19.777 since the month began.
    elapsed_ms = ((20 * 24 + 12) * 60 + 31) * 60_000 + 19_777
    assert int(first[20:28], 16) == elapsed_ms
    now[0] += 11 * 24 * 3600 * 1000
    third = factory.next_id()
    assert third[:28] != first[:28]
    assert int(third[20:28], 16) == elapsed_ms - 19 * 24 * 3600 * 1000


def test_a_year_ends_with_its_december() -> None:
    """The month after December is January."""
    december_ms = 1_798_761_599_999  # 2026-12-31 23:59:59.999 UTC
    now = [december_ms]
    factory = UniqIdFactory("1.2.3.4", 1, 1, lambda: now[0])
    assert int(factory.next_id()[20:28], 16) == 31 * 24 * 3600 * 1000 - 1
    now[0] += 1
    assert int(factory.next_id()[20:28], 16) == 0


def test_local_time_moves_the_start_of_the_month() -> None:
    """Java counts from local midnight."""
    offset_ms = 8 * 3600 * 1000
    factory = UniqIdFactory("1.2.3.4", 1, 1, lambda: NOW_MS, utc_offset_ms=offset_ms)
    uniq_id = factory.next_id()
    plain = UniqIdFactory("1.2.3.4", 1, 1, lambda: NOW_MS).next_id()
    assert int(uniq_id[20:28], 16) - int(plain[20:28], 16) == offset_ms


def test_counter_wraps_at_16_bits() -> None:
    """65,536 ids of one millisecond are all different."""
    factory = UniqIdFactory("1.2.3.4", 1, 1, lambda: NOW_MS)
    ids = {factory.next_id() for _ in range(65_536)}
    assert len(ids) == 65_536
    assert factory.next_id() in ids


def test_ipv6_ids_are_longer_and_bad_addresses_refused() -> None:
    """28 bytes, 56 digits."""
    assert len(UniqIdFactory("::1", 1, 1, lambda: NOW_MS).next_id()) == 56
    with pytest.raises(LocalProtocolError, match="IP address"):
        UniqIdFactory("localhost", 1, 1, lambda: NOW_MS)


@pytest.mark.parametrize("address", ["10.0.0.2:10911", "[2001:db8::1]:10911"])
def test_ids_of_a_batch_are_those_of_its_messages(address: str) -> None:
    """Joined by commas, with either size of a host."""
    host = encode_host(address)
    offsets = [0, 77, (1 << 62) + 5]
    singles = [offset_message_id(host, offset) for offset in offsets]
    assert offset_message_ids(host, offsets) == ",".join(singles)
    assert offset_message_ids(host, offsets[:1]) == singles[0]


def test_two_milliseconds_of_one_month_differ_in_their_time_only() -> None:
    """The month is looked up once."""
    now = [NOW_MS]
    factory = UniqIdFactory("1.2.3.4", 1, 1, lambda: now[0])
    first = factory.next_id()
    now[0] += 1
    second = factory.next_id()
    assert int(second[20:28], 16) == int(first[20:28], 16) + 1
    assert first[:20] == second[:20]
