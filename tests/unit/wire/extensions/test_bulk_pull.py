"""Bulk pulls: their headers and how a broker announces them."""

from cometmq.wire.extensions.bulk_pull import (
    BULK_PULL_FEATURE,
    FEATURES_FIELD,
    BulkPullCode,
    BulkPullHeader,
    BulkPullResponseHeader,
    features_of,
)


def test_a_broker_announces_its_features_by_name() -> None:
    """Brokers that are not ours announce none."""
    assert features_of({}) == frozenset()
    assert features_of({FEATURES_FIELD: f"{BULK_PULL_FEATURE},other"}) == {
        BULK_PULL_FEATURE,
        "other",
    }


def test_the_headers_are_those_of_a_pull_with_two_fields_more() -> None:
    """Under RocketMQ's names, misspelt where RocketMQ misspells them."""
    assert BulkPullCode.BULK_PULL == 31001
    header = BulkPullHeader("g", "T", 0, 7, 32, 0, 0, 0, with_sizes=True)
    ext = header.to_ext()
    assert ext["withSizes"] == "true"
    assert ext["queueOffset"] == "7"
    assert BulkPullHeader.from_ext(ext) == header
    answer = BulkPullResponseHeader(0, 9, 0, 9, msg_count=2, sizes_bytes=8)
    assert BulkPullResponseHeader.from_ext(answer.to_ext()) == answer
