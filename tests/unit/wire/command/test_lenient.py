"""The forgiving reader of JSON headers."""

import pytest

from cometmq.errors import RemoteProtocolError
from cometmq.wire.command.lenient import decode_ext_lenient, parse_int32


def test_ext_fields_of_any_kind_become_text() -> None:
    """Nulls are left out, and null alone is no field at all."""
    raw = b'{"a":1.50,"b":true,"c":null,"d":{"e":[1]},"f":"x"}'
    assert decode_ext_lenient(raw) == {"a": "1.50", "b": "true", "d": '{"e":["1"]}', "f": "x"}
    assert decode_ext_lenient(b"null") == {}
    with pytest.raises(RemoteProtocolError, match="expected an object"):
        decode_ext_lenient(b"[1]")


def test_numbers_of_a_header_fit_32_bits() -> None:
    """Absent ones are 0."""
    assert parse_int32("opaque", None) == 0
    assert parse_int32("opaque", "-7") == -7
    with pytest.raises(RemoteProtocolError, match="opaque"):
        parse_int32("opaque", str(2**31))
