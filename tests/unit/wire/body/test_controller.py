"""Bodies of the controller's codes, beside the captured ones (tests/golden/wire)."""

import pytest

from cometmq.errors import CodecError
from cometmq.wire.body.controller import (
    ReplicaIdentity,
    SetReplicas,
    SyncStateSet,
    decode_broker_names,
    decode_replicas_info,
    decode_sync_state_set,
    encode_broker_names,
    encode_election,
    encode_replicas_info,
    encode_sync_state_set,
)


def test_in_sync_replicas_are_written_in_order() -> None:
    """A set has none; the reader takes any order."""
    assert encode_sync_state_set({2, 1}, 7) == b'{"syncStateSet":[1,2],"syncStateSetEpoch":7}'
    body = b'{"syncStateSet":[2,1]}'
    assert decode_sync_state_set(body) == SyncStateSet((2, 1), 0)


@pytest.mark.parametrize("body", [b"[]", b"{}", b'{"syncStateSet":["a"]}', b'{"syncStateSet":1}'])
def test_other_in_sync_replicas_are_refused(body: bytes) -> None:
    """So a broken request changes nothing."""
    with pytest.raises(CodecError):
        decode_sync_state_set(body)


def test_broker_names_are_a_list_of_texts() -> None:
    """Anything else is refused."""
    assert decode_broker_names(encode_broker_names(["b", "c"])) == ["b", "c"]
    for body in (b"{}", b"[1]"):
        with pytest.raises(CodecError):
            decode_broker_names(body)


def test_a_set_without_a_master_comes_back() -> None:
    """Its id and address are absent."""
    member = ReplicaIdentity("b", 2, "h:1", is_alive=False)
    sets = {"b": SetReplicas(None, None, 4, 7, (), (member,))}
    body = encode_replicas_info(sets)
    assert b"masterBrokerId" not in body
    assert b"masterAddress" not in body
    assert decode_replicas_info(body) == sets


def test_an_election_names_the_brokers_of_the_set() -> None:
    """With bare keys, as RocketMQ's controller writes them (captured)."""
    assert encode_election("c", "b", {2: "h:2", 1: "h:1"}, (1,)) == (
        b'{"brokerMemberGroup":{"brokerAddrs":{1:"h:1",2:"h:2"},"brokerName":"b","cluster":"c"},'
        b'"syncStateSet":[1]}'
    )
