"""Every change of a replica set's document, and every reason not to make it."""

import msgspec
import pytest

from cometmq.core.replication.live_replicas import HeardReplica, LiveReplicas
from cometmq.core.replication.replica_set import (
    ElectionCandidate,
    ReplicaSet,
    SetMember,
    SetRefusal,
    adopt,
    alter_in_sync,
    apply_id,
    clean,
    elect,
    register,
    without_master,
)
from cometmq.wire.extensions.adopt import ReplicaView

A, B, C = (ElectionCandidate(3, 100, 5), ElectionCandidate(3, 100, 4), ElectionCandidate(2, 900, 1))
REPLICAS = {number: SetMember(f"h{number}:1", f"h{number}:1;7") for number in (1, 2, 3)}
LED = ReplicaSet(
    cluster="c",
    broker_name="b",
    replicas=REPLICAS,
    next_id=4,
    master_id=1,
    master_epoch=3,
    in_sync=(1, 2),
    in_sync_epoch=7,
)
NEW = ReplicaSet(cluster="c", broker_name="b", replicas=REPLICAS, next_id=4)


def changed(result: ReplicaSet | SetRefusal | None) -> ReplicaSet:
    """The next document."""
    assert isinstance(result, ReplicaSet), result
    return result


def code(result: ReplicaSet | SetRefusal | None) -> int:
    """The code of a refusal."""
    assert isinstance(result, SetRefusal), result
    return result.code


def test_ids_count_from_one_and_are_never_given_twice() -> None:
    """A repeated request of the same broker gets the same answer, another broker none."""
    assert code(apply_id(None, "c", "b", 2, "h:1;1")) == 2014
    first = changed(apply_id(None, "c", "b", 1, "h:1;1"))
    assert (first.replicas, first.next_id) == ({1: SetMember("h:1", "h:1;1")}, 2)
    assert apply_id(first, "c", "b", 1, "h:1;1") == first
    assert code(apply_id(first, "c", "b", 1, "h:9;1")) == 2014
    second = changed(apply_id(first, "c", "b", 2, "h:2;1"))
    left = changed(clean(second, "b", {2}, alive=(), is_living_too=False))
    assert (sorted(left.replicas), left.next_id) == ([1], 3)


def test_a_broker_registers_with_its_present_address() -> None:
    """Only one that has an id can register."""
    assert code(register(None, "b", 1, "h1:1")) == 2010
    assert code(register(LED, "b", 9, "h1:1")) == 2010
    assert register(LED, "b", 1, "h1:1") == LED
    moved = changed(register(LED, "b", 1, "new:1"))
    assert moved.address_of(1) == "new:1"
    assert moved.replicas[1].check_code == "h1:1;7"
    assert (moved.address_of(None), moved.address_of(9)) == (None, None)


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"recorded": None}, 2013),
        ({"in_sync": (2, 1)}, 2013),
        ({"master_id": 2}, 2002),
        ({"master_epoch": 2}, 2000),
        ({"in_sync_epoch": 6}, 2001),
        ({"in_sync": (1, 9)}, 2003),
        ({"in_sync": (1, 3), "alive": (1, 2)}, 2006),
        ({"in_sync": (2, 3)}, 2013),
    ],
)
def test_in_sync_replicas_change_only_as_the_present_master_asks(
    change: dict[str, object], expected: int
) -> None:
    """Each wrong field is refused with RocketMQ's code for it."""
    fields: dict[str, object] = {
        "recorded": LED,
        "master_id": 1,
        "master_epoch": 3,
        "in_sync": (1, 2, 3),
        "in_sync_epoch": 7,
        "alive": (1, 2, 3),
    }
    after = changed(alter_in_sync(**fields))  # type: ignore[arg-type]
    assert (after.in_sync, after.in_sync_epoch, after.master_epoch) == ((1, 2, 3), 8, 3)
    assert code(alter_in_sync(**{**fields, **change})) == expected  # type: ignore[arg-type]


def test_a_broker_that_may_have_lost_messages_is_not_in_sync() -> None:
    """Unless nobody else is."""
    left = changed(register(LED, "b", 2, "h2:1", is_unclean=True))
    assert (left.in_sync, left.in_sync_epoch, left.master_id) == ((1,), 8, 1)
    assert register(left, "b", 1, "h1:1", is_unclean=True) == left
    assert register(left, "b", 2, "h2:1", is_unclean=True) == left


def test_the_first_election_takes_whoever_asks() -> None:
    """There is nothing that another broker could have."""
    assert code(elect(None, {}, asker=1)) == 2010
    assert code(elect(NEW, {1: A})) == 2012
    assert code(elect(NEW, {1: A}, asker=9)) == 2012
    first = changed(elect(NEW, {}, asker=2))
    assert (first.master_id, first.master_epoch, first.in_sync, first.in_sync_epoch) == (
        2,
        1,
        (2,),
        1,
    )


def test_a_living_master_stays() -> None:
    """Whoever asks is told so."""
    assert code(elect(LED, {1: A, 2: B}, asker=2)) == 2011
    assert code(elect(LED, {1: A, 2: B}, asker=1, is_designated=True)) == 2011


def test_a_dead_masters_place_goes_to_the_fullest_in_sync_replica() -> None:
    """Epoch, then end of the log, then priority, then id; who is not in sync is not asked."""
    three = msgspec.structs.replace(LED, in_sync=(1, 2, 3))
    after = changed(elect(LED, {2: B, 3: C}))
    assert (after.master_id, after.master_epoch, after.in_sync, after.in_sync_epoch) == (
        2,
        4,
        (2,),
        8,
    )
    assert changed(elect(three, {2: B, 3: C})).master_id == 2
    longer = ElectionCandidate(3, 101, 9)
    assert changed(elect(three, {2: B, 3: longer})).master_id == 3
    preferred = ElectionCandidate(3, 100, 3)
    assert changed(elect(three, {2: B, 3: preferred})).master_id == 3
    assert changed(elect(three, {2: B, 3: B})).master_id == 2
    assert code(elect(LED, {3: C})) == 2012


def test_a_designated_broker_is_elected_or_nobody() -> None:
    """Also while the master lives; a broker that is not in sync is not elected."""
    assert changed(elect(LED, {1: A, 2: B}, asker=2, is_designated=True)).master_id == 2
    refusal = elect(LED, {1: A, 2: B, 3: C}, asker=3, is_designated=True)
    assert code(refusal) == 2012
    assert isinstance(refusal, SetRefusal)
    assert "wanted is 3" in refusal.remark


def test_a_master_that_started_anew_competes_with_the_others() -> None:
    """Its mastership has ended, so even itself begins a new epoch."""
    again = changed(elect(LED, {1: A}, asker=1, is_master_gone=True))
    assert (again.master_id, again.master_epoch) == (1, 4)
    assert changed(elect(LED, {1: A, 2: B}, asker=1, is_master_gone=True)).master_id == 2


def test_an_unclean_election_takes_anybody_who_lives() -> None:
    """Only where no in-sync replica lives, and only if that is allowed."""
    assert changed(elect(LED, {3: C}, is_unclean=True)).master_id == 3
    assert changed(elect(LED, {2: B, 3: C}, is_unclean=True)).master_id == 2
    gone = without_master(LED)
    assert (gone.master_id, gone.master_epoch, gone.in_sync, gone.in_sync_epoch) == (
        None,
        4,
        (1, 2),
        7,
    )
    assert changed(elect(gone, {2: B})).master_id == 2


def test_brokers_are_forgotten_when_they_are_gone() -> None:
    """The last in-sync replica stays while others do."""
    assert code(clean(None, "b", {1}, alive=(), is_living_too=True)) == 2009
    assert code(clean(LED, "b", (), alive=(), is_living_too=False)) == 2009
    assert code(clean(LED, "b", {2}, alive=(2,), is_living_too=False)) == 2009
    assert code(clean(LED, "b", {1, 2}, alive=(), is_living_too=False)) == 2009
    without = changed(clean(LED, "b", {2}, alive=(1,), is_living_too=False))
    assert (sorted(without.replicas), without.in_sync, without.in_sync_epoch) == ([1, 3], (1,), 8)
    assert (without.master_id, without.master_epoch) == (1, 3)
    led = changed(clean(LED, "b", {1}, alive=(1,), is_living_too=True))
    assert (led.master_id, led.master_epoch, led.in_sync) == (None, 4, (2,))
    outside = changed(clean(LED, "b", {3}, alive=(), is_living_too=False))
    assert (outside.in_sync, outside.in_sync_epoch) == ((1, 2), 7)
    assert clean(LED, "b", (), alive=(), is_living_too=True) is None
    assert clean(LED, "b", {1, 2, 3}, alive=(), is_living_too=False) is None


def test_a_document_comes_back_as_json() -> None:
    """What is recorded is what is read."""
    assert msgspec.json.decode(msgspec.json.encode(LED), type=ReplicaSet) == LED


def test_heartbeats_tell_who_lives() -> None:
    """A broker is silent after its own timeout, and its connection is recorded."""
    live = LiveReplicas()
    first, second = object(), object()
    live.heard("b", 1, HeardReplica("h1:1", A, 1000, 5000, first))
    live.heard("b", 2, HeardReplica("h2:1", B, 9000, 5000, second))
    live.heard("other", 1, HeardReplica("h3:1", C, 9000, 5000, second))
    assert live.candidates("b") == {1: A, 2: B}
    assert live.silent(6000) == []
    assert live.silent(6001) == [("b", 1)]
    assert live.disconnected(second) == [("b", 2), ("other", 1)]
    assert live.disconnected(second) == []
    heard = live.get("b", 2)
    assert heard is not None
    assert heard.connection is None
    live.forget("b", 1)
    live.forget("b", 1)
    assert live.get("b", 1) is None
    assert list(live.of("b")) == [2]


def view(
    master_epoch: int,
    log_end: int,
    *,
    is_master: bool = False,
    last_epoch: int = 3,
    in_sync: tuple[int, ...] = (),
    in_sync_min: int = 2,
) -> ReplicaView:
    """What one broker says."""
    return ReplicaView("c", is_master, master_epoch, last_epoch, log_end, in_sync, in_sync_min)


def adopted(
    views: dict[int, ReplicaView], count: int | None = None, *, is_unclean: bool = False
) -> ReplicaSet | SetRefusal:
    """Adopt the set of these brokers."""
    placed = {broker_id: (f"h{broker_id}:1", each) for broker_id, each in views.items()}
    return adopt(None, "b", placed, replica_count=count, is_unclean=is_unclean)


def test_adopt_the_master_that_lives() -> None:
    """Under a larger epoch than anybody knows, alone in sync, with an id for the next broker."""
    made = changed(adopted({1: view(3, 9), 2: view(3, 7, is_master=True, in_sync=(2, 4))}))
    assert (made.master_id, made.master_epoch, made.in_sync, made.next_id) == (2, 4, (2,), 5)
    assert (made.cluster, made.address_of(1), made.address_of(2)) == ("c", "h1:1", "h2:1")


def test_adopt_no_deposed_master() -> None:
    """It leads an epoch that is over; the others know."""
    views = {1: view(2, 90, is_master=True, last_epoch=2), 2: view(3, 7), 3: view(3, 8)}
    refused = adopted(views)
    assert isinstance(refused, SetRefusal)
    assert "leads the newest epoch that they know, 3" in refused.remark
    assert changed(adopted(views, 3)).master_id == 3


@pytest.mark.parametrize(
    ("answering", "count", "in_sync_min", "leader"),
    [
        ((1, 2, 3), 3, 1, 3),
        ((1, 2), 3, 2, 2),
        ((1, 2), 3, 1, None),
        ((2,), 3, 2, None),
        ((2,), 1, 2, None),  # it has heard of three
        ((1, 2, 3), 5, 3, 3),
        ((1, 2, 3), 6, 3, None),
    ],
)
def test_adopt_without_a_master(
    answering: tuple[int, ...], count: int, in_sync_min: int, leader: int | None
) -> None:
    """The longest log, where fewer are missing than a send had waited for; else only if the loss is
    accepted."""
    views = {
        number: view(3, number * 10, in_sync=(1, 2, 3), in_sync_min=in_sync_min)
        for number in answering
    }
    result = adopted(views, count)
    if leader is not None:
        assert changed(result).master_id == leader
        return
    assert isinstance(result, SetRefusal)
    assert "are missing" in result.remark
    assert changed(adopted(views, count, is_unclean=True)).master_id == max(answering)


def test_adopt_prefers_the_newest_epoch_to_the_longest_log() -> None:
    """A longer log of an older mastership has what nobody acknowledged."""
    views = {1: view(0, 90, last_epoch=2), 2: view(0, 10, last_epoch=3)}
    made = changed(adopted(views, 2))
    assert (made.master_id, made.master_epoch) == (2, 4)


def test_adopt_adds_to_a_recorded_set() -> None:
    """Only those that it lacks, and not in sync; nobody answers: nothing is recorded."""
    late = {2: ("other:1", view(3, 1)), 7: ("h7:1", view(0, 1))}
    grown = changed(adopt(LED, "b", late))
    assert (grown.replicas[2], grown.address_of(7), grown.next_id) == (REPLICAS[2], "h7:1", 8)
    assert (grown.in_sync, grown.master_epoch) == (LED.in_sync, LED.master_epoch)
    assert adopt(LED, "b", {}) == LED
    assert isinstance(adopted({}), SetRefusal)
