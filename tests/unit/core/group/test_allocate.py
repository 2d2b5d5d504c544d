"""Allocation strategies: RocketMQ's shares, queue by queue, and what all strategies must keep."""

import hashlib
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cometmq.core.group.allocate import (
    STRATEGIES,
    AllocateAveragely,
    AllocateAveragelyByCircle,
    AllocateByConfig,
    AllocateConsistentHash,
    AllocateMachineRoomNearby,
    AllocateStrategy,
    strategy_by_name,
)
from cometmq.errors import ConfigError
from cometmq.model import MessageQueue


def queues(count: int, broker: str = "broker-a") -> list[MessageQueue]:
    return [MessageQueue("t", broker, number) for number in range(count)]


def clients(count: int) -> list[str]:
    return [f"10.0.0.{number}@1" for number in range(count)]


def shares(strategy: AllocateStrategy, queue_count: int, client_count: int) -> list[list[int]]:
    return [
        [
            q.queue_id
            for q in strategy.allocate("g", one, queues(queue_count), clients(client_count))
        ]
        for one in clients(client_count)
    ]


@pytest.mark.parametrize(
    ("queue_count", "client_count", "expected"),
    [
        (4, 1, [[0, 1, 2, 3]]),
        (4, 2, [[0, 1], [2, 3]]),
        (5, 2, [[0, 1, 2], [3, 4]]),
        (4, 3, [[0, 1], [2], [3]]),
        (8, 3, [[0, 1, 2], [3, 4, 5], [6, 7]]),
        (4, 4, [[0], [1], [2], [3]]),
        (2, 4, [[0], [1], [], []]),
        # AllocateMessageQueueAveragelyTest of RocketMQ 5.4: ten clients, six queues.
        (6, 10, [[0], [1], [2], [3], [4], [5], [], [], [], []]),
    ],
)
def test_avg_gives_neighbouring_runs(
    queue_count: int, client_count: int, expected: list[list[int]]
) -> None:
    """AVG: equal runs, the first members one more."""
    assert shares(AllocateAveragely(), queue_count, client_count) == expected


@pytest.mark.parametrize(
    ("queue_count", "client_count", "expected"),
    [
        (4, 2, [[0, 2], [1, 3]]),
        (5, 2, [[0, 2, 4], [1, 3]]),
        (4, 3, [[0, 3], [1], [2]]),
        (2, 4, [[0], [1], [], []]),
    ],
)
def test_circle_deals_like_cards(
    queue_count: int, client_count: int, expected: list[list[int]]
) -> None:
    """AVG_BY_CIRCLE: every n-th queue."""
    assert shares(AllocateAveragelyByCircle(), queue_count, client_count) == expected


def test_consistent_hash_takes_the_next_place_on_the_ring() -> None:
    """A queue belongs to the member whose virtual node follows its own hash, going round."""

    def place(text: str) -> int:
        return int(hashlib.md5(text.encode()).hexdigest()[:8], 16)

    members = clients(5)
    nodes = [(place(f"{member}-{replica}"), member) for member in members for replica in range(10)]
    for queue in queues(24):
        own = place(f"MessageQueue [topic=t, brokerName=broker-a, queueId={queue.queue_id}]")
        following = [node for node in nodes if node[0] >= own]
        owner = min(following or nodes)[1]
        for member in members:
            got = AllocateConsistentHash().allocate("g", member, queues(24), members)
            assert (queue in got) == (member == owner)


def test_consistent_hash_moves_few_queues() -> None:
    """When a member leaves, only its own queues change hands."""
    members = clients(5)
    strategy = AllocateConsistentHash()
    before = {m: set(strategy.allocate("g", m, queues(60), members)) for m in members}
    after = {m: set(strategy.allocate("g", m, queues(60), members[1:])) for m in members[1:]}
    for member in members[1:]:
        assert before[member] <= after[member]


def test_by_config_leaves_out_what_the_topic_lacks() -> None:
    """CONFIG: the configured queues that exist, whoever else is there."""
    wanted = [*queues(2), MessageQueue("t", "gone", 7)]
    strategy = AllocateByConfig(wanted)
    assert strategy.allocate("g", "c", queues(4), ["c", "d"]) == queues(2)
    assert strategy.name == "CONFIG"


def test_by_config_shares_the_retry_topic() -> None:
    """What failed comes again, although nobody configures queues of a retry topic."""
    retry = [MessageQueue("%RETRY%g", "broker-a", 0)]
    strategy = AllocateByConfig(queues(2))
    assert strategy.allocate("g", "c", retry, ["c", "d"]) == retry
    assert strategy.allocate("g", "d", retry, ["c", "d"]) == []
    listed = AllocateByConfig([*queues(2), MessageQueue("%RETRY%g", "broker-b", 0)])
    assert listed.allocate("g", "c", retry, ["c", "d"]) == []


def test_machine_room_nearby_keeps_queues_in_their_room() -> None:
    """Own room first; a room without members is shared by everybody."""
    everything = queues(4, "r1-a") + queues(4, "r2-a") + queues(2, "r3-a")
    members = ["r1-x", "r1-y", "r2-z"]
    strategy = AllocateMachineRoomNearby(
        AllocateAveragely(), lambda queue: queue.broker_name[:2], lambda client: client[:2]
    )
    got = {m: strategy.allocate("g", m, everything, members) for m in members}
    assert [(q.broker_name, q.queue_id) for q in got["r1-x"]] == [
        ("r1-a", 0),
        ("r1-a", 1),
        ("r3-a", 0),
    ]
    assert [(q.broker_name, q.queue_id) for q in got["r2-z"]] == [
        ("r2-a", 0),
        ("r2-a", 1),
        ("r2-a", 2),
        ("r2-a", 3),
    ]
    assert sorted(chain.from_iterable(got.values())) == sorted(everything)
    assert strategy.name == "MACHINE_ROOM_NEARBY-AVG"


def test_machine_room_nearby_refuses_the_unknown() -> None:
    """A queue or client without a room would be allocated differently by different members."""
    no_queue_room = AllocateMachineRoomNearby(AllocateAveragely(), lambda q: "", lambda c: "r")
    no_client_room = AllocateMachineRoomNearby(AllocateAveragely(), lambda q: "r", lambda c: "")
    with pytest.raises(ValueError, match="queue t@broker-a:0"):
        no_queue_room.allocate("g", "c", queues(1), ["c"])
    with pytest.raises(ValueError, match="client 'c'"):
        no_client_room.allocate("g", "c", queues(1), ["c"])
    assert no_client_room.allocate("g", "x", queues(1), ["c"]) == []


@pytest.mark.parametrize("name", STRATEGIES)
def test_strategies_refuse_nothing_to_decide(name: str) -> None:
    """Empty input is a caller's mistake; a client the others do not know gets nothing."""
    strategy = strategy_by_name(name)
    assert strategy.name == name
    with pytest.raises(ValueError, match="client_id"):
        strategy.allocate("g", "", queues(1), ["c"])
    with pytest.raises(ValueError, match="queues"):
        strategy.allocate("g", "c", [], ["c"])
    with pytest.raises(ValueError, match="client_ids"):
        strategy.allocate("g", "c", queues(1), [])
    assert strategy.allocate("g", "stranger", queues(3), ["c"]) == []


def test_unknown_names_are_refused_with_the_known_ones() -> None:
    """The text lists what there is."""
    with pytest.raises(ConfigError, match="AVG, AVG_BY_CIRCLE, CONSISTENT_HASH"):
        strategy_by_name("FAIR")
    with pytest.raises(ValueError, match="fewer than 1"):
        AllocateConsistentHash(0)


@given(st.sampled_from(sorted(STRATEGIES)), st.integers(1, 40), st.integers(1, 12))
def test_every_queue_has_exactly_one_owner(name: str, queue_count: int, client_count: int) -> None:
    """Whatever the numbers: no queue twice, none left out."""
    got = shares(strategy_by_name(name), queue_count, client_count)
    assert sorted(chain.from_iterable(got)) == list(range(queue_count))


def test_by_config_takes_message_queues_only() -> None:
    """Anything else would never be equal to a queue of the topic."""
    with pytest.raises(ConfigError, match="is not a list of MessageQueue"):
        AllocateByConfig(["broker-a:0"])  # type: ignore[list-item]


def test_a_member_of_a_room_without_queues_gets_its_share_of_orphaned_rooms() -> None:
    """Room a has queues and no member; room b has a member and no queues."""
    strategy = AllocateMachineRoomNearby(AllocateAveragely(), lambda queue: "a", lambda name: "b")
    assert strategy.allocate("g", "c1", queues(2), ["c1"]) == queues(2)
