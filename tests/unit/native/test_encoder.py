"""The extension module by itself: empty parts, references and arguments."""

import gc
import sys
from typing import Any

import pytest
from tests.request_fields import send_fields

from cometmq import native
from cometmq.wire.command.command import RemotingCommand, encode_command

pytestmark = pytest.mark.skipif(native.SendEncoder is None, reason=native.describe())

PROPERTIES = "KEYS\x01a b\x02UNIQ_KEY\x01{:04}\x02TAGS\x01x\x02"
ORIGIN = bytes(36)
STORE_MS = 1 << 40
SPAN = (STORE_MS, 2 * STORE_MS)


class Queue:
    """What the encoder reads of a queue."""

    max = 5
    magic = 0xDAA320A7
    topic_part = b"\x01t"
    is_watched = True
    is_gone = False


def encoder(queue: Queue, part: bytes = b"") -> Any:
    assert native.SendEncoder is not None
    return native.SendEncoder(
        {"t": 4}, set(), {"t": {0: queue}}, Queue, part, (part, part, part), (bytes(5), part), part,
        0xFFFFFFFF, bytes(8), 1000, part, True, False,
    )  # fmt: skip


def frames(count: int) -> bytes:
    return b"".join(
        encode_command(
            RemotingCommand.request(
                310, send_fields("t", PROPERTIES.format(number)), b"body",
                serialize_type=number % 2,
            )
        )
        for number in range(count)
    )  # fmt: skip


def encode(send_encoder: Any, data: bytes) -> Any:
    return send_encoder.encode(data, 0, 0, 1 << 30, STORE_MS, ORIGIN, 1 << 22, *SPAN, True, True, 1)


def test_empty_parts() -> None:
    """A broker that adds no property, no id and no constant text is served all the same."""
    data = frames(4)
    end, answers, (records, _, keys, arrivals), *_ = encode(encoder(Queue()), data)
    assert end == len(data)
    assert (keys[0], len(arrivals)) == (4, 4)
    assert records.count(b"body") == 4
    assert answers.count(b"queueOffset") == 4


def topics_encoder(topics: dict[str, dict[int, Queue]], checked: dict[str, int]) -> Any:
    assert native.SendEncoder is not None
    return native.SendEncoder(
        checked, set(), topics, Queue, b"", (b"", b"", b""), (bytes(5), b""), b"", 0xFFFFFFFF,
        bytes(8), 1000, b"", False, False,
    )  # fmt: skip


def test_queues_that_the_store_deletes_are_forgotten() -> None:
    """A queue that is gone stops the run; the next one takes what the store has in its place."""
    old, new = Queue(), Queue()
    topics = {"t": {0: old}}
    send_encoder = topics_encoder(topics, {"t": 4})
    assert encode(send_encoder, frames(1))[2][1][0][0] is old
    topics["t"][0] = new
    old.is_gone = True
    assert encode(send_encoder, frames(1)) is None
    assert encode(send_encoder, frames(1))[2][1][0][0] is new


def test_change_of_topics_is_seen() -> None:
    """With another revision each topic has to be among those that passed the checks."""
    checked = {"t": 4}
    send_encoder = topics_encoder({"t": {0: Queue()}}, checked)
    assert encode(send_encoder, frames(1)) is not None
    checked.clear()
    assert encode(send_encoder, frames(1)) is not None
    arguments = (0, 0, 1 << 30, STORE_MS, ORIGIN, 1 << 22, *SPAN, True, True)
    assert send_encoder.encode(frames(1), *arguments, 2) is None


def test_many_queues() -> None:
    """Each send goes into its own queue, also when the table of known queues has grown."""
    topics: dict[str, dict[int, Queue]] = {}
    for number in range(300):
        topic = f"topic{number}"
        topics[topic] = {queue_id: Queue() for queue_id in range(4)}
        for queue in topics[topic].values():
            queue.topic_part = bytes([len(topic)]) + topic.encode()
    send_encoder = topics_encoder(topics, dict.fromkeys(topics, 4))
    for _ in range(2):
        for first in range(0, 1200, 60):
            names = [(f"topic{number // 4}", number % 4) for number in range(first, first + 60)]
            data = b"".join(
                encode_command(
                    RemotingCommand.request(
                        310, send_fields(topic, PROPERTIES.format(1), e=str(queue_id))
                    )
                )
                for topic, queue_id in names
            )
            end, _, (_, queues, _, _), *_ = encode(send_encoder, data)
            assert end == len(data)
            assert [queue[0] for queue in queues] == [topics[name][key] for name, key in names]


def test_messages_that_wait_need_no_queue_of_their_topic() -> None:
    """The queue is made when the first of them is delivered."""
    waiting = Queue()
    waiting.topic_part = b"\x13SCHEDULE_TOPIC_XXXX"
    send_encoder = topics_encoder({"SCHEDULE_TOPIC_XXXX": {0: waiting}}, {"t": 4})
    text = PROPERTIES.format(1) + "DELAY\x011\x02"
    data = encode_command(RemotingCommand.request(310, send_fields("t", text), b"body"))
    assert encode(send_encoder, data)[2][1][0][0] is waiting
    data = encode_command(RemotingCommand.request(310, send_fields("u", text), b"body"))
    assert encode(send_encoder, data) is None


class StoredQueue:
    """What the units of a run change in a queue."""

    def __init__(self, *, is_dirty: bool) -> None:
        self.tail = bytearray(b"before")
        self.max = self.visible = 5
        self.is_dirty = is_dirty


def test_units_go_into_queues() -> None:
    """Tails grow, ends move, and queues that are not dirty are marked with their first position."""
    assert native.extend_tails is not None
    assert native.advance_queues is not None
    clean, dirty = StoredQueue(is_dirty=False), StoredQueue(is_dirty=True)
    queues = [(clean, b"u" * 20, 6, 100), (dirty, b"w" * 40, 7, 200)]
    native.extend_tails(queues)
    assert (clean.tail, dirty.tail) == (b"before" + b"u" * 20, b"before" + b"w" * 40)
    assert (clean.max, dirty.max) == (5, 5)
    marked: list[object] = []
    native.advance_queues(queues[1:], False, lambda *note: marked.append(note), STORE_MS)
    assert (dirty.max, dirty.visible, marked) == (7, 5, [])
    native.advance_queues(queues, True, lambda *note: marked.append(note), STORE_MS)
    assert (clean.max, clean.visible, dirty.visible) == (6, 6, 7)
    assert marked == [(clean, 100, STORE_MS)]


def test_exported_tail() -> None:
    """A tail whose bytes somebody uses cannot grow: an error, and it is as it was."""
    assert native.extend_tails is not None
    queue = StoredQueue(is_dirty=True)
    with memoryview(queue.tail), pytest.raises(BufferError):
        native.extend_tails([(queue, b"u" * 20, 6, 100)])
    assert queue.tail == b"before"


def test_nothing_is_kept() -> None:
    """Runs give back every reference, whether they end well, stop or fail."""
    queue = Queue()
    send_encoder = encoder(queue, b"part")
    good, bad = frames(3), frames(1)[:-1]

    def run_all() -> None:
        assert encode(send_encoder, good) is not None
        assert encode(send_encoder, bad) is None
        with pytest.raises(ValueError, match="out of range"):
            send_encoder.encode(
                good, len(good) + 1, 0, 9, STORE_MS, ORIGIN, 9, *SPAN, True, True, 1
            )
        assert native.hash_keys is not None
        hashes, _, _ = native.hash_keys([("t", 1, 2, ("a", "b c", "\ud800"))])
        assert len(hashes) == 4 * 8
        assert native.extend_tails is not None
        assert native.advance_queues is not None
        queues = [(StoredQueue(is_dirty=False), b"u" * 20, 6, 100)]
        native.extend_tails(queues)
        native.advance_queues(queues, True, lambda *_: None, STORE_MS)
        with pytest.raises(TypeError):
            native.extend_tails([()])  # type: ignore[list-item]
        with pytest.raises(TypeError):
            native.hash_keys([("t", 1, 2, ("a", "b c", 7))])  # type: ignore[list-item]

    run_all()
    shared = (queue, ORIGIN, STORE_MS, good, Queue, None)
    gc.collect()
    references, blocks = [*map(sys.getrefcount, shared)], sys.getallocatedblocks()
    for _ in range(300):
        run_all()
    gc.collect()
    # None is shared by all of the process.
    assert [*map(sys.getrefcount, shared)][:-1] == references[:-1]
    assert abs(sys.getrefcount(None) - references[-1]) < 300
    assert sys.getallocatedblocks() - blocks < 300
