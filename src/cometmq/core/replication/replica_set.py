"""One replica set as a controller records it, and every change of it.

A replica set is the brokers of one broker name: one master and its slaves.  Its document says which
broker has which id, who is the master, and which replicas are in sync: the SyncStateSet, whose
members have everything that was acknowledged.  Two numbers order the changes: the master epoch
grows with each change of the master, the SyncStateSet epoch with each change of the members.

Each function takes a document and returns the next one, or a `SetRefusal` with RocketMQ's response
code.  Nothing here knows a network, a clock or where documents are recorded.

Source: ReplicasInfoManager and DefaultElectPolicy of RocketMQ 5.4.0.  Differences: a broker that
registers again has given up its mastership (`elect`), and the last in-sync replica cannot be
removed while others stay (`clean`).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import msgspec

from cometmq.errors import ResponseCode
from cometmq.wire.extensions.adopt import ReplicaView

__all__ = [
    "FIRST_ID",
    "ElectionCandidate",
    "ReplicaSet",
    "SetMember",
    "SetRefusal",
    "adopt",
    "alter_in_sync",
    "apply_id",
    "clean",
    "elect",
    "register",
    "without_master",
]

FIRST_ID: Final = 1
"""The id of the first broker of a set; ids are never given twice."""


class SetMember(msgspec.Struct, frozen=True, rename="camel"):
    """One broker of a set; the check code is what it chose when it applied for its id."""

    address: str
    check_code: str


class ReplicaSet(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The document of one broker name; `master_id` is None while the set has no master."""

    cluster: str
    broker_name: str
    replicas: dict[int, SetMember]
    next_id: int = FIRST_ID
    master_id: int | None = None
    master_epoch: int = 0
    in_sync: tuple[int, ...] = ()
    in_sync_epoch: int = 0

    def address_of(self, broker_id: int | None) -> str | None:
        """Return the address of a broker, None for an unknown one."""
        replica = None if broker_id is None else self.replicas.get(broker_id)
        return None if replica is None else replica.address


@dataclass(frozen=True, slots=True)
class SetRefusal:
    """Why a document does not change."""

    code: int
    remark: str


@dataclass(frozen=True, slots=True)
class ElectionCandidate:
    """What a living broker said of itself; a smaller priority is preferred."""

    epoch: int
    log_end: int
    priority: int


def apply_id(
    recorded: ReplicaSet | None, cluster: str, broker_name: str, broker_id: int, check_code: str
) -> ReplicaSet | SetRefusal:
    """Give a broker the id that it asks for; a repeated request is answered alike."""
    if recorded is None:
        if broker_id != FIRST_ID:
            return SetRefusal(
                ResponseCode.CONTROLLER_BROKER_ID_INVALID,
                f"broker set {broker_name} is not registered, so its first broker gets id"
                f" {FIRST_ID}, not {broker_id}",
            )
        recorded = ReplicaSet(cluster=cluster, broker_name=broker_name, replicas={})
    holder = recorded.replicas.get(broker_id)
    if holder is not None:
        if holder.check_code == check_code:
            return recorded
        return SetRefusal(
            ResponseCode.CONTROLLER_BROKER_ID_INVALID,
            f"id {broker_id} of broker set {broker_name} belongs to the broker at"
            f" {holder.address}; ask for the next id again",
        )
    replica = SetMember(check_code.partition(";")[0], check_code)
    return msgspec.structs.replace(
        recorded,
        replicas={**recorded.replicas, broker_id: replica},
        next_id=max(recorded.next_id, broker_id + 1),
    )


def register(
    recorded: ReplicaSet | None,
    broker_name: str,
    broker_id: int,
    address: str,
    *,
    is_unclean: bool = False,
) -> ReplicaSet | SetRefusal:
    """Take the present address of a broker that has an id.

    Args:
        is_unclean: it may have lost what it had acknowledged (a power failure), so it is not in
            sync any more, unless nobody else is.
    """
    if recorded is None or broker_id not in recorded.replicas:
        return SetRefusal(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED,
            f"broker set {broker_name} has no broker with id {broker_id} here",
        )
    if is_unclean and broker_id in recorded.in_sync and len(recorded.in_sync) > 1:
        recorded = msgspec.structs.replace(
            recorded,
            in_sync=tuple(each for each in recorded.in_sync if each != broker_id),
            in_sync_epoch=recorded.in_sync_epoch + 1,
        )
    replica = recorded.replicas[broker_id]
    if replica.address == address:
        return recorded
    moved = msgspec.structs.replace(replica, address=address)
    return msgspec.structs.replace(recorded, replicas={**recorded.replicas, broker_id: moved})


def alter_in_sync(
    recorded: ReplicaSet | None,
    *,
    master_id: int,
    master_epoch: int,
    in_sync: Collection[int],
    in_sync_epoch: int,
    alive: Collection[int],
) -> ReplicaSet | SetRefusal:
    """Change the in-sync replicas, as the master of the present epoch asks for.

    Args:
        in_sync: the ids that the master wants.
        in_sync_epoch: the number of the set that the master knows.
        alive: ids of the brokers that send heartbeats.
    """
    if recorded is None:
        return SetRefusal(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED, "Broker metadata is not existed"
        )
    wanted = tuple(sorted(set(in_sync)))
    if wanted == recorded.in_sync:
        return SetRefusal(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"the SyncStateSet is {list(wanted)} already",
        )
    if master_id != recorded.master_id:
        return SetRefusal(
            ResponseCode.CONTROLLER_INVALID_MASTER,
            f"broker {master_id} is not the master, {recorded.master_id} is",
        )
    if master_epoch != recorded.master_epoch:
        return SetRefusal(
            ResponseCode.CONTROLLER_FENCED_MASTER_EPOCH,
            f"the master epoch is {recorded.master_epoch}, not {master_epoch}",
        )
    if in_sync_epoch != recorded.in_sync_epoch:
        return SetRefusal(
            ResponseCode.CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH,
            f"the SyncStateSet epoch is {recorded.in_sync_epoch}, not {in_sync_epoch}",
        )
    for broker_id in wanted:
        if broker_id not in recorded.replicas:
            return SetRefusal(
                ResponseCode.CONTROLLER_INVALID_REPLICAS,
                f"broker {broker_id} is not registered in this set",
            )
        if broker_id not in alive:
            return SetRefusal(
                ResponseCode.CONTROLLER_BROKER_NOT_ALIVE,
                f"broker {broker_id} sends no heartbeats",
            )
    if master_id not in wanted:
        return SetRefusal(
            ResponseCode.CONTROLLER_ALTER_SYNC_STATE_SET_FAILED,
            f"a SyncStateSet without the master {master_id} is not possible",
        )
    return msgspec.structs.replace(
        recorded, in_sync=wanted, in_sync_epoch=recorded.in_sync_epoch + 1
    )


def elect(
    recorded: ReplicaSet | None,
    alive: Mapping[int, ElectionCandidate],
    *,
    asker: int | None = None,
    is_designated: bool = False,
    is_master_gone: bool = False,
    is_unclean: bool = False,
) -> ReplicaSet | SetRefusal:
    """Elect a master from the in-sync replicas that live: the largest epoch, then the largest end
    of the log, then the smallest priority, then the smallest id.

    Only the first election of a set takes whoever asks.  The new set of in-sync replicas is the new
    master alone, as RocketMQ's brokers expect.

    Args:
        alive: the brokers that send heartbeats.
        asker: the broker that asks; None for the controller.
        is_designated: only the asker may become the master.
        is_master_gone: the present master does not go on, even if it is alive: it has started anew.
        is_unclean: without a living in-sync replica take any living one; what only the others have
            is lost (enableElectUncleanMaster).
    """
    if recorded is None:
        return SetRefusal(
            ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED, "Broker hasn't been registered"
        )
    if recorded.master_epoch == 0:
        if asker in recorded.replicas:
            return _with_master(recorded, asker)
        return SetRefusal(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"broker {asker} is not registered in this set",
        )
    candidates = [broker_id for broker_id in recorded.in_sync if broker_id in alive]
    if not candidates and is_unclean:
        candidates = [broker_id for broker_id in recorded.replicas if broker_id in alive]
    master = None if is_master_gone else recorded.master_id
    if master in candidates and (not is_designated or asker == master):
        return SetRefusal(
            ResponseCode.CONTROLLER_MASTER_STILL_EXIST,
            f"the master {master} is alive: no other is elected",
        )
    if is_designated:
        candidates = [broker_id for broker_id in candidates if broker_id == asker]
    if not candidates:
        living = [broker_id for broker_id in recorded.in_sync if broker_id in alive]
        return SetRefusal(
            ResponseCode.CONTROLLER_ELECT_MASTER_FAILED,
            f"no in-sync replica can become the master: in sync are {list(recorded.in_sync)},"
            f" of which {living} send heartbeats"
            + (f"; wanted is {asker}" if is_designated else ""),
        )

    def rank(broker_id: int) -> tuple[int, int, int, int]:
        candidate = alive[broker_id]
        return -candidate.epoch, -candidate.log_end, candidate.priority, broker_id

    return _with_master(recorded, min(candidates, key=rank))


def adopt(
    recorded: ReplicaSet | None,
    broker_name: str,
    views: Mapping[int, tuple[str, ReplicaView]],
    *,
    replica_count: int | None = None,
    is_unclean: bool = False,
) -> ReplicaSet | SetRefusal:
    """Record a set from what its living brokers say, or add those that a recorded set lacks.

    The master is the broker that leads the newest epoch that any of them knows.  Without one, the
    end of the log decides: what was acknowledged is in every in-sync replica, which were at least
    `minInSyncReplicas`, so where fewer than that are missing, the longest log of the newest epoch
    has it.

    Args:
        views: address and view by id.
        replica_count: how many brokers the set has, where its master is dead; else None.
        is_unclean: elect although too many are missing.
    """
    code = ResponseCode.SYSTEM_ERROR
    if recorded is not None:
        added = {
            broker_id: SetMember(address, "")
            for broker_id, (address, _) in views.items()
            if broker_id not in recorded.replicas
        }
        if not added:
            return recorded
        return msgspec.structs.replace(
            recorded,
            replicas={**recorded.replicas, **added},
            next_id=max(recorded.next_id, *(broker_id + 1 for broker_id in added)),
        )
    if not views:
        return SetRefusal(code, f"no broker of {broker_name} that this controller hears answers")
    newest = max(view.master_epoch for _, view in views.values())
    masters = [
        broker_id
        for broker_id, (_, view) in views.items()
        if view.is_master and view.master_epoch == newest
    ]
    known = set(views).union(*(view.in_sync for _, view in views.values()))
    if not masters:
        if replica_count is None:
            return SetRefusal(
                code,
                f"none of the brokers {sorted(views)} of {broker_name} leads the newest epoch that"
                f" they know, {newest}: start its master, or elect among those that live"
                " (--elect-among)",
            )
        missing_count = max(replica_count, len(known)) - len(views)
        in_sync_min = max(view.in_sync_min for _, view in views.values())
        if missing_count >= in_sync_min and not is_unclean:
            return SetRefusal(
                code,
                f"{missing_count} brokers of {broker_name} are missing, and minInSyncReplicas is"
                f" {in_sync_min}: they may have acknowledged messages that the brokers"
                f" {sorted(views)} lack; start one of them, or accept the loss"
                " (enableElectUncleanMaster=true at the controller)",
            )

    def rank(broker_id: int) -> tuple[int, int, int]:
        _, view = views[broker_id]
        return -view.last_epoch, -view.log_end, broker_id

    master_id = min(masters or views, key=rank)
    epoch = max(max(view.master_epoch, view.last_epoch) for _, view in views.values())
    made = ReplicaSet(
        cluster=views[master_id][1].cluster,
        broker_name=broker_name,
        replicas={broker_id: SetMember(address, "") for broker_id, (address, _) in views.items()},
        next_id=max(known) + 1,
        master_epoch=epoch,
    )
    return _with_master(made, master_id)


def without_master(recorded: ReplicaSet) -> ReplicaSet:
    """The master is dead and nobody follows it; the in-sync replicas stay."""
    return msgspec.structs.replace(recorded, master_id=None, master_epoch=recorded.master_epoch + 1)


def _with_master(recorded: ReplicaSet, broker_id: int | None) -> ReplicaSet:
    assert broker_id is not None
    return msgspec.structs.replace(
        recorded,
        master_id=broker_id,
        master_epoch=recorded.master_epoch + 1,
        in_sync=(broker_id,),
        in_sync_epoch=recorded.in_sync_epoch + 1,
    )


def clean(
    recorded: ReplicaSet | None,
    broker_name: str,
    broker_ids: Collection[int],
    *,
    alive: Collection[int],
    is_living_too: bool,
) -> ReplicaSet | SetRefusal | None:
    """Forget brokers, or the whole set where no ids are given; None: nothing is left of the set.

    Args:
        alive: ids of the brokers that send heartbeats.
        is_living_too: forget brokers that are alive as well.
    """
    code = ResponseCode.CONTROLLER_INVALID_CLEAN_BROKER_METADATA
    if recorded is None:
        return SetRefusal(code, f"there is no broker set {broker_name} here")
    if not is_living_too:
        if not broker_ids and recorded.master_id is not None:
            return SetRefusal(code, f"broker set {broker_name} has a master: stop it first")
        living = sorted(set(broker_ids).intersection(alive))
        if living:
            return SetRefusal(
                code,
                f"of broker set {broker_name}, the brokers {living} are alive: stop them first",
            )
    replicas = {
        broker_id: replica
        for broker_id, replica in recorded.replicas.items()
        if broker_ids and broker_id not in broker_ids
    }
    if not replicas:
        return None
    in_sync = tuple(broker_id for broker_id in recorded.in_sync if broker_id in replicas)
    if not in_sync and recorded.in_sync:
        return SetRefusal(
            code,
            f"broker set {broker_name} has no other in-sync replica than {list(recorded.in_sync)}:"
            " the brokers that would stay may lack acknowledged messages; elect one of them first"
            " (enableElectUncleanMaster), or forget the whole set",
        )
    has_lost_master = recorded.master_id is not None and recorded.master_id not in replicas
    return msgspec.structs.replace(
        recorded,
        replicas=replicas,
        master_id=None if has_lost_master else recorded.master_id,
        master_epoch=recorded.master_epoch + has_lost_master,
        in_sync=in_sync,
        in_sync_epoch=recorded.in_sync_epoch + (in_sync != recorded.in_sync),
    )
