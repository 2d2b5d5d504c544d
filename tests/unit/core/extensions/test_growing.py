"""Growth of ordered topics: layouts, attributes, verdicts, and order under any interleaving."""

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import replace
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cometmq.core.extensions.growing import (
    ALL_MOVED,
    BUCKET_COUNT,
    Growth,
    Layout,
    Phase,
    QueueDrain,
    StoreDecision,
    bucket_of,
    check_change,
    consumed_offset,
    decide_store,
    group_hash,
    parse_group_field,
    takes_mixed_batch,
)
from cometmq.core.topic.selector import select_by_hash
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue

OLD, NEW = Layout.parse("a:2;b:1"), Layout.parse("a:4;b:1")
GROUPS = [f"group-{number}" for number in range(40)]


def test_a_layout_selects_as_the_hash_selector_does() -> None:
    """A topic that grows for the first time moves nothing but what the new number moves."""
    queues = [MessageQueue("t", name, n) for name, count in OLD.brokers for n in range(count)]
    for group in GROUPS:
        assert MessageQueue("t", *OLD.home(group_hash(group))) == select_by_hash(queues, group)
    assert str(OLD) == "a:2;b:1"
    assert (OLD.queue_count, OLD.count_of("a"), OLD.count_of("x")) == (3, 2, 0)
    assert Layout.of({"b": 1, "a": 2, "c": 0}) == OLD


@pytest.mark.parametrize("text", ["", "a", "a:", "a:0", "a:x", ":4", "a:1;a:2", "a:1;"])
def test_other_layouts_are_refused(text: str) -> None:
    """The text is named."""
    with pytest.raises(ConfigError, match="is not brokers with their number of queues"):
        Layout.parse(text)


def test_attributes_hold_a_growth() -> None:
    """Each broker writes its own marks; what does not fit together is said."""
    growth = Growth(3, Phase.MOVING, OLD, NEW).marked("a", 0, ALL_MOVED).marked("b", 0, 5)
    attributes = growth.to_attributes("a")
    assert attributes == {
        "group.epoch": "3",
        "group.phase": "moving",
        "group.layout.old": "a:2;b:1",
        "group.layout": "a:4;b:1",
        "group.moved": "0:*",
    }
    at_a = Growth.from_attributes(attributes, "a")
    at_b = Growth.from_attributes(growth.to_attributes("b"), "b")
    assert at_a is not None
    assert at_b is not None
    assert at_a.merged(at_b) == growth
    assert at_a.merged(None) == at_a
    assert at_a.merged(replace(at_b, epoch=4)).epoch == 4
    assert at_a.merged(replace(at_b, epoch=2)) == at_a
    assert Growth.from_attributes({"message.type": "FIFO"}, "a") is None
    with pytest.raises(ConfigError, match="do not fit together"):
        Growth.from_attributes({**attributes, "group.phase": "nearly"}, "a")


def test_a_second_growth_waits_for_the_first() -> None:
    """At each broker alone; the same growth may be written again, but not turned back."""
    first = Growth(1, Phase.MOVING, OLD, NEW)
    check_change(None, first, "a")
    check_change(first, None, "a")
    check_change(first, replace(first, phase=Phase.CLOSING), "a")
    with pytest.raises(ConfigError, match="cannot be prepared again"):
        check_change(first, replace(first, phase=Phase.PREPARED), "a")
    second = Growth(2, Phase.PREPARED, NEW, OLD)
    with pytest.raises(ConfigError, match="groups left in 2 queues of a"):
        check_change(first, second, "a")
    complete = first.marked("a", 0, ALL_MOVED).marked("a", 1, ALL_MOVED)
    check_change(complete, second, "a")
    with pytest.raises(ConfigError, match="the next one starts"):
        check_change(complete, replace(second, epoch=3), "a")


def test_a_growth_is_complete_when_every_broker_says_so() -> None:
    """From then on nobody asks a broker that the new layout does not have; it never goes back."""
    old, new = Layout.parse("a:2;b:1"), Layout.parse("b:2")
    moving = Growth(1, Phase.MOVING, old, new)
    complete = replace(moving, phase=Phase.COMPLETE)
    assert (moving.brokers, complete.brokers) == ({"a", "b"}, {"b"})
    with pytest.raises(ConfigError, match="growth 1 is not complete: a has groups left in 2 qu"):
        check_change(moving, complete, "a")
    check_change(moving.marked("b", 0, ALL_MOVED), complete, "b")
    with pytest.raises(ConfigError, match="growth 1 is complete and cannot be moving again"):
        check_change(complete, moving, "b")
    at_b = Growth.from_attributes(complete.to_attributes("b"), "b")
    assert at_b == complete, "what b says is enough: a's marks are not in it"
    assert at_b.is_complete
    assert at_b.merged(moving).is_complete
    assert {at_b.home(number) for number in range(9)} == {("b", 0), ("b", 1)}
    for number in range(9):
        verdict = decide_store(at_b, old.home(number), 1, number)
        is_home = old.home(number) == new.home(number)
        assert verdict is (StoreDecision.STORE if is_home else StoreDecision.MOVED)
    check_change(complete, Growth(2, Phase.PREPARED, new, old), "b")


def test_places_are_parsed() -> None:
    """Epoch and hash, or an epoch alone for a batch."""
    assert parse_group_field("3:12") == (3, 12)
    assert parse_group_field("3:") == (3, None)
    for text in ("", "3", ":1", "x:1", "1:x", "1:-2"):
        with pytest.raises(ConfigError, match="expected epoch:hash"):
            parse_group_field(text)


def test_a_batch_of_many_groups_is_stored_where_nothing_moves() -> None:
    """In a queue of the new layout, from a producer that knows of it."""
    growth = Growth(1, Phase.MOVING, OLD, NEW).marked("a", 0, ALL_MOVED)
    assert takes_mixed_batch(growth, ("a", 0), 1)
    assert takes_mixed_batch(growth, ("a", 3), 1)
    assert not takes_mixed_batch(growth, ("a", 0), 0)
    assert not takes_mixed_batch(growth, ("a", 1), 1)
    assert not takes_mixed_batch(growth, ("a", 4), 1)


def test_buckets_are_many_also_among_equal_remainders() -> None:
    """The hashes of one queue are equal modulo the number of queues, and still spread."""
    assert len({bucket_of(8 * number + 3) for number in range(2_000)}) > BUCKET_COUNT * 0.9
    assert {bucket_of(group_hash(group)) for group in GROUPS} <= set(range(BUCKET_COUNT))


def test_all_consumers_count_and_what_is_deleted_does_not() -> None:
    """The smallest offset; a group without one has consumed nothing."""
    assert consumed_offset([5, 7], 0, 9) == 5
    assert consumed_offset([None, 7], 2, 9) == 2
    assert consumed_offset([1], 3, 9) == 3
    assert consumed_offset([], 0, 9) == 9


Decide = Callable[[Growth, tuple[str, int], int, int], StoreDecision]


class Broker:
    """A broker as the model has it: what it keeps over a crash, and what it forgets."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.growth: Growth | None = None
        self.saved: Growth | None = None
        self.drains: dict[int, QueueDrain] = {}


class World:
    """Producers that learn at their own time, consumers, brokers that crash, and an operator."""

    def __init__(self, layout: Layout) -> None:
        self.brokers = {name: Broker(name) for name in ("a", "b")}
        self.first = layout
        self.layout = layout
        self.queues: dict[tuple[str, int], list[tuple[str, int]]] = defaultdict(list)
        self.offsets: dict[tuple[int, tuple[str, int]], int] = defaultdict(int)
        self.seen: dict[tuple[int, str], int] = defaultdict(int)
        self.sent: dict[str, int] = defaultdict(int)
        self.views: list[Growth | None] = [None] * 3
        self.steps: list[tuple[str, Growth]] = []
        self.moves = 0
        self.decide: Decide = decide_store
        self.does_forget = True

    def send(self, producer: int, group: str) -> None:
        """One try, and what the producer learns when it is refused."""
        number = group_hash(group)
        view = self.views[producer]
        name, queue_id = (self.first if view is None else view).home(number)
        broker = self.brokers[name]
        epoch = 0 if view is None else view.epoch
        if broker.growth is not None:
            verdict = self.decide(broker.growth, (name, queue_id), epoch, number)
            if verdict in (StoreDecision.MOVED, StoreDecision.WAIT):
                self.views[producer] = self.learned()
                return
        self.queues[name, queue_id].append((group, self.sent[group]))
        self.sent[group] += 1
        if queue_id in broker.drains:
            drain = broker.drains[queue_id]
            drain.note(bucket_of(number), len(self.queues[name, queue_id]))

    def learned(self) -> Growth | None:
        """What the brokers tell: only what is durable."""
        whole: Growth | None = None
        for broker in self.brokers.values():
            broker.saved = broker.growth
            if broker.saved is not None:
                whole = broker.saved.merged(whole)
        return whole

    def consume(self, consumer: int, queue: tuple[str, int], count: int) -> None:
        """Consume, and check that each group's numbers come without gap or step back."""
        start = self.offsets[consumer, queue]
        for group, number in self.queues[queue][start : start + count]:
            assert number == self.seen[consumer, group], f"{group} at {queue}"
            self.seen[consumer, group] += 1
            self.offsets[consumer, queue] += 1

    def tick(self, broker: Broker) -> None:
        """Mark what has drained."""
        growth = broker.growth
        if growth is None or growth.phase is Phase.PREPARED:
            return
        for queue_id in growth.unmoved_queues_of(broker.name):
            queue = (broker.name, queue_id)
            end = len(self.queues[queue])
            offsets = [self.offsets[consumer, queue] for consumer in range(2)]
            moved = growth.moved.get(queue, 0)
            bits = broker.drains[queue_id].drained(consumed_offset(offsets, 0, end), moved)
            if bits:
                self.moves += 1
                broker.growth = broker.growth.marked(*queue, bits) if broker.growth else None

    def crash(self, broker: Broker) -> None:
        """Forget what was not saved."""
        broker.growth = broker.saved
        broker.drains = {}
        self.watch(broker)

    def watch(self, broker: Broker) -> None:
        growth = broker.growth
        if growth is None or growth.phase is Phase.PREPARED:
            return
        for queue_id in growth.unmoved_queues_of(broker.name):
            if queue_id not in broker.drains:
                end = len(self.queues[broker.name, queue_id]) if self.does_forget else 0
                broker.drains[queue_id] = QueueDrain(end)

    def operate(self, wanted: Layout) -> None:
        """The next step of a growth, or the first of another."""
        if not self.steps:
            now = self.learned()
            if now is not None and not now.is_complete:
                if now.phase is Phase.MOVING:
                    closing = replace(now, phase=Phase.CLOSING)
                    self.steps = [(name, closing) for name in ("a", "b")]
                return
            old = self.first if now is None else now.new
            if wanted == old:
                return
            epoch = 1 if now is None else now.epoch + 1
            growth = Growth(epoch, Phase.PREPARED, old, wanted)
            moving = replace(growth, phase=Phase.MOVING)
            self.steps = [(name, growth) for name in ("a", "b")]
            self.steps += [(name, moving) for name in ("a", "b")]
        name, growth = self.steps.pop(0)
        broker = self.brokers[name]
        check_change(broker.growth, growth, name)
        if broker.growth is None or broker.growth.epoch != growth.epoch:
            broker.drains = {}
            broker.growth = replace(growth, moved={})
        else:
            broker.growth = replace(growth, moved=broker.growth.moved)
        broker.saved = broker.growth  # the request is answered when it is durable
        self.watch(broker)


LAYOUTS = [Layout.parse(text) for text in ("a:2", "a:3", "a:2;b:2", "b:2", "a:1;b:3", "a:1")]
ACTIONS = st.tuples(st.integers(0, 11), st.integers(0, 2), st.integers(0, 7), st.integers(1, 9))


def play_and_check(
    actions: Iterable[tuple[int, int, int, int]], world: World | None = None
) -> World:
    """Run a world through these actions; it checks the order itself."""
    world = world or World(LAYOUTS[0])
    groups = GROUPS[:8]
    for kind, one, two, count in actions:
        broker = world.brokers["ab"[one % 2]]
        if kind <= 5:
            world.send(one, groups[two])
        elif kind <= 7 and world.queues:
            queues = sorted(world.queues)
            world.consume(one % 2, queues[two % len(queues)], count)
        elif kind == 8:
            world.tick(broker)
        elif kind == 9:
            broker.saved = broker.growth
        elif kind == 10:
            world.crash(broker)
        else:
            world.operate(LAYOUTS[two % len(LAYOUTS)])
    for consumer in range(2):
        _consume_all(world, consumer)
    return world


def by_chance(chance: Random, count: int) -> list[tuple[int, int, int, int]]:
    """Actions as hypothesis makes them, but long."""
    return [
        (chance.randrange(12), chance.randrange(3), chance.randrange(8), chance.randint(1, 9))
        for _ in range(count)
    ]


def _consume_all(world: World, consumer: int) -> None:
    """Consume the rest in the one order in which it can be complete: whatever comes next."""
    while True:
        progress = False
        for queue in sorted(world.queues):
            start = world.offsets[consumer, queue]
            rest = world.queues[queue][start:]
            if rest and rest[0][1] == world.seen[consumer, rest[0][0]]:
                world.consume(consumer, queue, 1)
                progress = True
        if not progress:
            break
    assert all(world.seen[consumer, group] == count for group, count in world.sent.items())


@settings(max_examples=150, deadline=None)
@given(st.lists(ACTIONS, min_size=40, max_size=400))
def test_no_interleaving_breaks_the_order_of_a_group(
    actions: list[tuple[int, int, int, int]],
) -> None:
    """Stale producers, lagging consumers, crashes before a mark is durable, repeated growth."""
    play_and_check(actions)


def test_the_interleavings_do_move_groups() -> None:
    """Chance from a seed reaches growths that complete, so the test above is not about nothing."""
    chance = Random(7)
    moved = epochs = 0
    for _ in range(40):
        world = play_and_check(by_chance(chance, 600))
        moved += world.moves
        growth = world.learned()
        epochs += growth.epoch if growth is not None else 0
    assert moved > 100
    assert epochs > 40


def _trusts_any_epoch(
    growth: Growth, queue: tuple[str, int], epoch: int, group_hash: int
) -> StoreDecision:
    return decide_store(growth, queue, growth.epoch, group_hash)


def _takes_what_has_moved(
    growth: Growth, queue: tuple[str, int], epoch: int, group_hash: int
) -> StoreDecision:
    return decide_store(replace(growth, moved={}), queue, epoch, group_hash)


@pytest.mark.parametrize("fault", [_trusts_any_epoch, _takes_what_has_moved, None])
def test_a_broken_rule_is_found(fault: "Decide | None") -> None:
    """Without the epoch, without the marks, or with a crash that counts as an empty queue."""
    chance = Random(11)
    for _ in range(300):
        world = World(LAYOUTS[0])
        if fault is None:
            world.does_forget = False
        else:
            world.decide = fault
        try:
            play_and_check(by_chance(chance, 600), world)
        except AssertionError:
            return
    raise AssertionError("no interleaving found the fault")
