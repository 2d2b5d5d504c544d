"""How members read together that want different messages: no message is lost."""

import random
from dataclasses import dataclass, field

import pytest

from cometmq.core.filter.share_filter import filter_of_part, wants
from cometmq.core.filter.tag_filter import parse_subscription
from cometmq.core.group.consumer_offsets import ConsumerOffsetTable
from cometmq.core.group.filter_shares import FilterShares, SharePart, difference_text, reader_group
from cometmq.model.group import SubscriptionData
from cometmq.model.offsets import ConsumerOffset

RETRY = "%RETRY%g"
QUEUES = 3
RETAIN_MS = 1_000
Wishes = dict[str, SubscriptionData]


def wishes(**expressions: str) -> Wishes:
    """Subscriptions by topic; an expression with a sign of comparison is SQL92."""
    table = {
        topic: parse_subscription(topic, text, "SQL92" if ">" in text else "TAG")
        for topic, text in expressions.items()
    }
    return {**table, RETRY: parse_subscription(RETRY, "*")}


def shares_of() -> FilterShares[str]:
    return FilterShares(ConsumerOffsetTable(), ConsumerOffsetTable())


def part_of(shares: FilterShares[str], topic: str, member: str) -> SharePart:
    part = shares.part("g", topic, member, 0)
    assert part is not None
    return part


def test_members_that_want_the_same_are_left_alone() -> None:
    """No offsets and no lists of their own; the order of tags and versions do not matter."""
    shares = shares_of()
    members = {"a": wishes(t="A || B"), "b": wishes(t="B||A"), "hand": {}}
    assert not shares.update("g", members, 0)
    assert not shares.is_split("g")
    assert shares.part("g", "t", "a", 0) is None
    assert shares.twins("g", "a") is None
    assert shares.wanted_topics("g") == ["t"]
    assert shares.groups_on("t") == ["g"]
    assert not shares.update("g", {}, 0)
    assert shares.wanted_topics("g") == ["t"]  # they may come back
    assert not shares.update("g", {"a": wishes(t="C")}, 0)
    assert not shares.is_split("g")  # and want something else


def test_a_topic_goes_to_those_that_want_it() -> None:
    """Queues are divided among twins; a message has one owner among members with its filter."""
    shares = shares_of()
    assert shares.update("g", {"a": wishes(t="*"), "b": wishes(t="*", u="*")}, 0)
    assert (shares.twins("g", "a"), shares.twins("g", "b")) == (["a"], ["b"])
    assert shares.twins("g", "stranger") is None
    assert shares.part("g", "u", "b", 0) is None  # alone
    assert shares.part("g", "u", "a", 0) is None
    one, other = part_of(shares, "t", "a"), part_of(shares, "t", "b")
    assert not one.has_own_offsets
    owners = [(one.is_owner(queue), other.is_owner(queue)) for queue in range(4)]
    assert owners == [(True, False), (False, True)] * 2


def test_each_filter_has_its_offsets_and_the_group_the_least() -> None:
    """A share that comes begins at the group's offset; the last one that stays gives it its own."""
    shares = shares_of()
    shares.offsets.commit("g", "t", 0, ConsumerOffset(10), 0)
    shares.update("g", {"a": wishes(t="A"), "b": wishes(t="B")}, 0)
    first, second = part_of(shares, "t", "a"), part_of(shares, "t", "b")
    assert {reader_group(first.reader), reader_group(second.reader)} == {"g"}
    assert shares.offset_of(second, "g", "t", 0) == 10
    shares.commit(first, "g", "t", 0, ConsumerOffset(50), 0)
    assert shares.offsets.query("g", "t", 0) == 10
    shares.commit(second, "g", "t", 0, ConsumerOffset(30), 0)
    assert shares.offsets.query("g", "t", 0) == 30
    shares.update("g", {"b": wishes(t="B")}, 0)
    assert shares.offset_of(part_of(shares, "t", "b"), "g", "t", 0) == 30
    assert shares.expire(RETAIN_MS + 1, RETAIN_MS) == {"g": ["t: TAG A"]}
    assert not shares.is_split("g")
    assert dict(shares.own.all()) == {}


def test_an_operators_reset_reaches_every_share() -> None:
    """Also one by a commit from outside the group."""
    shares = shares_of()
    shares.update("g", {"a": wishes(t="A"), "b": wishes(t="B")}, 0)
    for member, offset in (("a", 50), ("b", 30)):
        part = part_of(shares, "t", member)
        shares.commit(part, "g", "t", 0, ConsumerOffset(offset), 0)
    shares.offsets.reset("g", "t", 0, ConsumerOffset(5), 0)
    for member in "ab":
        part = part_of(shares, "t", member)
        assert shares.own.deliver_reset(part.reader, "t", 0, 50, member) == 5
    shares.commit_all("g", "t", 0, ConsumerOffset(7), 0)
    for member in "ab":
        assert shares.own.queues(part_of(shares, "t", member).reader, "t") == {0: 7}


def test_tags_with_one_hash_are_told_apart_by_their_text() -> None:
    """``Aa`` and ``BB`` have one code, so codes would leave a message to who drops it."""
    shares = shares_of()
    shares.update("g", {"a": wishes(t="Aa"), "b": wishes(t="BB")}, 0)
    codes, filtered = filter_of_part(part_of(shares, "t", "b"), "t")
    assert filtered is not None
    assert filtered.takes({"TAGS": "BB"})
    assert not filtered.takes({"TAGS": "Aa"})
    assert codes == filter_of_part(part_of(shares, "t", "a"), "t")[0]


def test_a_retry_goes_to_who_wants_its_first_topic() -> None:
    """What nobody wants any more goes to the first share, as RocketMQ's would to anybody."""
    shares = shares_of()
    shares.update("g", {"a": wishes(t="A", u="*"), "b": wishes(t="B")}, 0)
    filters = [filter_of_part(part_of(shares, RETRY, member), RETRY)[1] for member in "ab"]
    assert None not in filters
    for properties, takers in (
        ({"RETRY_TOPIC": "t", "TAGS": "A"}, [True, False]),
        ({"RETRY_TOPIC": "t", "TAGS": "B"}, [False, True]),
        ({"RETRY_TOPIC": "u", "TAGS": "B"}, [True, False]),
        ({"RETRY_TOPIC": "gone"}, [True, False]),
    ):
        assert [one is not None and one.takes(properties) for one in filters] == takers


def test_the_difference_names_members_filters_and_versions() -> None:
    """One text for the log, for both members and for people."""
    newer = parse_subscription("t", "B", sub_version=7)
    text = difference_text({"a": wishes(t="A"), "b": {"t": newer, "u": newer}})
    assert text == (
        "topic t: TAG A wanted by a (version 0); TAG B wanted by b (version 7)"
        " | topic u: TAG B wanted by b (version 7); nothing wanted by a"
    )
    assert difference_text({"a": wishes(t="A"), "b": wishes(t="A")}) is None
    many = {f"m{number}": wishes(t="A" if number else "B") for number in range(8)}
    assert "and 2 more" in (difference_text(many) or "")


# -- random lives ---------------------------------------------------------------------------


@dataclass
class Member:
    """A client: it reads queues of its own allocation, and commits from time to time."""

    wishes: Wishes
    positions: dict[int, int] = field(default_factory=dict)


class Model:
    """A topic of three queues, members that come and go, and who has handled what."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.shares = shares_of()
        self.members: dict[str, Member] = {}
        self.queues: list[list[dict[str, str]]] = [[] for _ in range(QUEUES)]
        self.owed: set[tuple[int, int]] = set()
        """Messages that some member wanted when they were stored."""
        self.handled: set[tuple[int, int]] = set()
        self.is_over = False
        self.names = 0

    def update(self) -> None:
        self.shares.update("g", {name: one.wishes for name, one in self.members.items()}, 0)
        # What all its members unsubscribed from is owed to nobody, also not to who comes later.
        self.owed = {(queue, at) for queue, at in self.owed if self.is_wanted(queue, at)}

    def is_wanted(self, queue: int, offset: int) -> bool:
        """Whether a share wants the message, also one whose members are away."""
        entry = self.shares.all().get("g")
        listed = [] if entry is None else entry.topics.get("t", [])
        message = self.queues[queue][offset]
        return any(wants(one)(message) for share in listed for one in share.wishes)

    def join(self) -> None:
        chosen = self.chance.choice(["*", "A", "B", "A || B", "B || C", "n > 3", "n > 1", None])
        table = {"u": "*"} if chosen is None else {"t": chosen}
        if self.chance.random() < 0.3:
            table["u"] = "*"
        self.names += 1
        name = f"m{self.names}"
        self.members[name] = Member(wishes(**table))
        self.update()
        self.pull_all(sorted(self.members))  # before that it has not begun

    def leave(self) -> None:
        if self.members:
            name = self.chance.choice(sorted(self.members))
            if self.chance.random() < 0.5:
                self.commit(name)
            del self.members[name]
            self.update()

    def resubscribe(self) -> None:
        if self.members:
            name = self.chance.choice(sorted(self.members))
            self.members[name] = Member(wishes(t=self.chance.choice(["A", "B", "*", "n > 2"])))
            self.update()
            self.pull_all(sorted(self.members))

    def restart(self) -> None:
        """The broker starts again from its tables; members keep their positions and return."""
        own = ConsumerOffsetTable(self.shares.own.all())
        own.restore_resets(self.shares.own.pending_resets())
        offsets = ConsumerOffsetTable(self.shares.offsets.all())
        saved = self.shares.all()
        for entry in saved.values():
            entry.twins_of, entry.wishes_of = {}, {}
            for listed in entry.topics.values():
                for share in listed:
                    share.expected_until_ms = 0 if share.is_there else None
                    share.counts = {}
        self.shares = FilterShares(offsets, own)
        self.shares.restore(saved, 0)
        names = sorted(self.members)
        self.chance.shuffle(names)
        for count in range(1, len(names) + 1):
            present = {name: self.members[name].wishes for name in names[:count]}
            self.shares.update("g", present, 0)
            self.pull_all(names[:count])

    def send(self) -> None:
        queue = self.chance.randrange(QUEUES)
        message = {"TAGS": self.chance.choice("ABCD"), "n": str(self.chance.randrange(6))}
        self.queues[queue].append(message)
        if self.is_wanted(queue, len(self.queues[queue]) - 1):
            self.owed.add((queue, len(self.queues[queue]) - 1))

    def pull_all(self, names: list[str]) -> None:
        for name in names:
            if "t" in self.members[name].wishes:
                queues = self.queues_of(name, names)
                positions = self.members[name].positions
                for queue in set(positions) - set(queues):
                    del positions[queue]  # a client that gets it again asks for the offset again
                for queue in queues:
                    self.pull(name, queue)

    def queues_of(self, name: str, present: list[str]) -> list[int]:
        readers = [one for one in present if "t" in self.members[one].wishes]
        twins = [one for one in self.shares.twins("g", name) or readers if one in readers]
        twins.sort()
        index = twins.index(name)
        return [queue for queue in range(QUEUES) if queue % len(twins) == index]

    def pull(self, name: str, queue: int) -> None:
        """What `broker.pull` does with a pull, and the client with its answer."""
        member, shares = self.members[name], self.shares
        part = shares.part("g", "t", name, 0)
        table, reader = shares.table_of(part, "g")
        if queue not in member.positions:
            member.positions[queue] = int(shares.offset_of(part, "g", "t", queue) or 0)
        if part is not None and not part.is_owner(queue):
            handled = shares.offset_of(part, "g", "t", queue) or 0
            member.positions[queue] = max(member.positions[queue], handled)
            return
        reset = table.deliver_reset(reader, "t", queue, member.positions[queue], name)
        if reset is not None:
            member.positions[queue] = reset
            assert table.deliver_reset(reader, "t", queue, reset, name) is None
        begin = member.positions[queue]
        if part is None:
            takes = wants(member.wishes["t"])
        else:
            committed = shares.offset_of(part, "g", "t", queue)
            if committed is None:
                shares.commit(part, "g", "t", queue, ConsumerOffset(begin), 0)
            elif shares.takes_over(part, "t", queue):
                begin = max(begin, committed)
            _, filtered = filter_of_part(part, "t")
            own = wants(member.wishes["t"])
            takes = own if filtered is None else filtered.takes
        slow = self.chance.random() < 0.4 and not self.is_over
        end = min(len(self.queues[queue]), begin + (self.chance.randrange(3) if slow else 1000))
        for offset in range(begin, end):
            if takes(self.queues[queue][offset]):
                self.handled.add((queue, offset))
        member.positions[queue] = max(begin, end)
        if self.chance.random() < 0.7:
            self.commit(name, queue)

    def commit(self, name: str, only: int | None = None) -> None:
        part = self.shares.part("g", "t", name, 0)
        table, reader = self.shares.table_of(part, "g")
        for queue, position in self.members[name].positions.items():
            if only not in (None, queue) or table.has_reset(reader, "t", queue):
                continue
            if part is None or part.is_owner(queue):
                self.shares.commit(part, "g", "t", queue, ConsumerOffset(position), 0)

    def run(self, steps: int) -> None:
        for _ in range(steps):
            step = self.chance.random()
            if step < 0.5:
                self.send()
            elif step < 0.75:
                self.pull_all(sorted(self.members))
            elif step < 0.85:
                self.join()
            elif step < 0.92:
                self.leave()
            elif step < 0.97:
                self.resubscribe()
            else:
                self.restart()
        self.is_over = True
        for _ in range(3):
            self.pull_all(sorted(self.members))

    def lost(self) -> list[tuple[int, int]]:
        """Owed messages that a present member wants and nobody has handled."""
        return [
            (queue, offset)
            for queue, offset in sorted(self.owed - self.handled)
            if any(
                wants(one.wishes["t"])(self.queues[queue][offset])
                for one in self.members.values()
                if "t" in one.wishes
            )
        ]


@pytest.mark.parametrize("seed", range(60))
def test_no_life_of_a_group_loses_a_message(seed: int) -> None:
    """Members join, leave, change their minds, and the broker starts again, in any order."""
    model = Model(seed)
    model.run(120)
    assert model.lost() == []


def test_a_release_that_comes_first_after_a_restart_takes_no_message_from_the_old_one() -> None:
    """The broker was killed; the new member is back before the old one, which wants more."""
    shares = shares_of()
    shares.update("g", {"old": wishes(t="A || B")}, 0)
    for queue_id in range(QUEUES):
        shares.commit_all("g", "t", queue_id, ConsumerOffset(1), 0)
    saved = shares.all()
    for entry in saved.values():
        entry.twins_of.clear()
        entry.wishes_of.clear()
        for share in (one for each in entry.topics.values() for one in each):
            share.counts, share.expected_until_ms = {}, 0
    again = FilterShares[str](shares.offsets, ConsumerOffsetTable())
    again.restore(saved, 1_000)
    again.update("g", {"new": wishes(t="A")}, 2_000)
    part = part_of(again, "t", "new")
    assert part.seniors == ()  # it gets every message that it wants at once
    again.commit(part, "g", "t", 0, ConsumerOffset(9), 2_000)
    assert again.offsets.query("g", "t", 0) == 1
    again.update("g", {"new": wishes(t="A"), "old": wishes(t="A || B")}, 3_000)
    old = part_of(again, "t", "old")
    assert again.offset_of(old, "g", "t", 0) == 1
    assert [item.sub_string for (item,) in old.seniors] == ["A"]
    late = FilterShares[str](shares.offsets, ConsumerOffsetTable())
    late.restore(again.all(), 0)
    late.update("g", {"new": wishes(t="A")}, 10**9)
    assert late.is_split("g")  # both were there
