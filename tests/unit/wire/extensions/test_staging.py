"""Requests of staged batches: their names on the wire, and bodies that are none."""

import pytest

from cometmq.errors import RemoteProtocolError
from cometmq.wire.command.codes import OWN_CODE_MAX, OWN_CODE_MIN
from cometmq.wire.extensions.staging import (
    DropBody,
    PublishBody,
    PublishHeader,
    SinkEntry,
    SinkHeader,
    StagedEntry,
    StagedListing,
    StageHeader,
    StagingCode,
    TokenClaim,
    decode_body,
    encode_body,
)


def test_codes_are_our_own() -> None:
    """Numbers other peers have for ever."""
    assert [int(code) for code in StagingCode] == [31010, 31011, 31012, 31013, 31014]
    assert all(OWN_CODE_MIN <= code <= OWN_CODE_MAX for code in StagingCode)


def test_headers_on_the_wire() -> None:
    """Spelled as RocketMQ spells its own."""
    header = StageHeader("s", 7, "p", "t", 2, "T", 3, 99)
    ext = header.to_ext()
    assert ext == {
        "sink": "s",
        "batchId": "7",
        "part": "p",
        "token": "t",
        "sequence": "2",
        "topic": "T",
        "queueId": "3",
        "bornTimestamp": "99",
    }
    assert StageHeader.from_ext(ext) == header
    assert PublishHeader.from_ext({"sink": "s", "batchId": "1"}) == PublishHeader("s", 1, False)
    assert SinkHeader(None).to_ext() == {}


def test_bodies_come_back_as_they_were() -> None:
    """Through their JSON."""
    publish = PublishBody([TokenClaim("t", 1, 2)], "a", {"a": [TokenClaim("t", 1, 2)]})
    assert decode_body(encode_body(publish), PublishBody) == publish
    drop = DropBody(["t"])
    assert decode_body(encode_body(drop), DropBody) == drop
    waits = StagedEntry("t", "s", 1, "p", 2, 3, 4, 5)
    listing = StagedListing({"s": SinkEntry(1, 2, 3)}, [waits])
    assert decode_body(encode_body(listing), StagedListing) == listing


def test_a_broken_body_names_its_field() -> None:
    """So that a peer's author finds it."""
    with pytest.raises(RemoteProtocolError, match=r"PublishBody: .*tokens"):
        decode_body(b'{"tokens": 1}', PublishBody)
