"""Bodies of the controller's codes: SyncStateSet, election, replicas of broker sets.

Source: SyncStateSet, ElectMasterResponseBody and BrokerReplicasInfo of RocketMQ 5.4.0, and frames
captured from its brokers and controller.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cometmq.errors import CodecError
from cometmq.wire.body.fields import (
    bool_field,
    each_object,
    int_field,
    object_field,
    optional_int_field,
    optional_str_field,
    str_field,
)
from cometmq.wire.command.fastjson import dumps, loads_lenient, loads_object

__all__ = [
    "ReplicaIdentity",
    "SetReplicas",
    "SyncStateSet",
    "decode_broker_names",
    "decode_replicas_info",
    "decode_sync_state_set",
    "encode_broker_names",
    "encode_election",
    "encode_epoch_cache",
    "encode_replicas_info",
    "encode_sync_state_set",
]


_INT64_MAX: Final = 2**63 - 1


@dataclass(frozen=True, slots=True)
class SyncStateSet:
    """Body of 1001, 1003, 1004 and 1008: the ids of the in-sync replicas, and their number."""

    members: tuple[int, ...]
    epoch: int


@dataclass(frozen=True, slots=True)
class ReplicaIdentity:
    """One replica in the answer to 1006."""

    broker_name: str
    broker_id: int
    address: str
    is_alive: bool


@dataclass(frozen=True, slots=True)
class SetReplicas:
    """One broker set in the answer to 1006; id and address are None without a master."""

    master_id: int | None
    master_address: str | None
    master_epoch: int
    in_sync_epoch: int
    in_sync: tuple[ReplicaIdentity, ...]
    not_in_sync: tuple[ReplicaIdentity, ...]


def encode_sync_state_set(members: Iterable[int], epoch: int) -> bytes:
    """Return the body."""
    return dumps({"syncStateSet": sorted(members), "syncStateSetEpoch": epoch})


def decode_sync_state_set(raw: bytes) -> SyncStateSet:
    """Return the in-sync replicas of a body.

    Raises:
        CodecError: it is no such body.
    """
    body = "SyncStateSet"
    data = loads_object(raw, body)
    members = data.get("syncStateSet")
    if not isinstance(members, list) or not all(type(member) is int for member in members):
        raise CodecError(f"{body}: field syncStateSet is {members!r:.100}, expected ids")
    return SyncStateSet(tuple(members), int_field(data, body, "syncStateSetEpoch", 0))


def encode_election(
    cluster: str, broker_name: str, addresses: Mapping[int, str], members: Collection[int]
) -> bytes:
    """Return the body of an answer to 1002: the set's brokers, and the in-sync replicas."""
    group = {
        "brokerAddrs": dict(sorted(addresses.items())),
        "brokerName": broker_name,
        "cluster": cluster,
    }
    return dumps({"brokerMemberGroup": group, "syncStateSet": sorted(members)})


def encode_epoch_cache(
    cluster: str,
    broker_name: str,
    broker_id: int,
    epochs: Sequence[tuple[int, int]],
    log_end: int,
) -> bytes:
    """Return the body of an answer to 1007: number and start of each epoch, oldest first."""
    ends = [start for _, start in epochs[1:]] + [_INT64_MAX]
    return dumps(
        {
            "brokerId": broker_id,
            "brokerName": broker_name,
            "clusterName": cluster,
            "epochList": [
                {"endOffset": end, "epoch": number, "startOffset": start}
                for (number, start), end in zip(epochs, ends, strict=False)
            ],
            "maxOffset": log_end,
        }
    )


def encode_broker_names(names: Iterable[str]) -> bytes:
    """Return the body of a request 1006."""
    return dumps(list(names))


def decode_broker_names(raw: bytes) -> list[str]:
    """Return the broker names that a request 1006 asks for.

    Raises:
        CodecError: it is no list of names.
    """
    names = loads_lenient(raw)
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise CodecError(f"the body is {names!r:.100}, expected a list of broker names")
    return names


def encode_replicas_info(sets: Mapping[str, SetReplicas]) -> bytes:
    """Return the body of an answer to 1006."""
    return dumps({"replicasInfoTable": {name: _set(each) for name, each in sets.items()}})


def _set(replicas: SetReplicas) -> dict[str, Any]:
    data: dict[str, Any] = {
        "inSyncReplicas": [_identity(replica) for replica in replicas.in_sync],
        "masterEpoch": replicas.master_epoch,
        "notInSyncReplicas": [_identity(replica) for replica in replicas.not_in_sync],
        "syncStateSetEpoch": replicas.in_sync_epoch,
    }
    if replicas.master_id is not None:
        data["masterBrokerId"] = replicas.master_id
    if replicas.master_address is not None:
        data["masterAddress"] = replicas.master_address
    return data


def _identity(replica: ReplicaIdentity) -> dict[str, Any]:
    return {
        "alive": replica.is_alive,
        "brokerAddress": replica.address,
        "brokerId": replica.broker_id,
        "brokerName": replica.broker_name,
    }


def decode_replicas_info(raw: bytes) -> dict[str, SetReplicas]:
    """Return the broker sets of an answer to 1006.

    Raises:
        CodecError: it is no such body.
    """
    body = "BrokerReplicasInfo"
    table = object_field(loads_object(raw, body), body, "replicasInfoTable")
    return {
        name: SetReplicas(
            optional_int_field(data, body, "masterBrokerId"),
            optional_str_field(data, body, "masterAddress"),
            int_field(data, body, "masterEpoch"),
            int_field(data, body, "syncStateSetEpoch"),
            tuple(each_object(data, body, "inSyncReplicas", _read_identity)),
            tuple(each_object(data, body, "notInSyncReplicas", _read_identity)),
        )
        for name, data in table.items()
    }


def _read_identity(data: Mapping[Any, Any]) -> ReplicaIdentity:
    body = "ReplicaIdentity"
    return ReplicaIdentity(
        str_field(data, body, "brokerName"),
        int_field(data, body, "brokerId"),
        str_field(data, body, "brokerAddress"),
        bool_field(data, body, "alive", default=False),
    )
