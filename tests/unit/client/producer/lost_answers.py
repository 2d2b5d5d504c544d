"""Loses answers of sends: the message is stored, and the connection breaks before the answer."""

from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

from cometmq.net.server import ServerConnection
from cometmq.wire.frame.framing import FrameReader


class LostAnswers:
    """What was lost."""

    def __init__(self, count_max: int) -> None:
        self.count_max = count_max
        self.places: list[tuple[int, int]] = []
        """Queue id and queue offset of each lost answer."""

    @property
    def count(self) -> int:
        return len(self.places)

    def loses(self, data: bytes) -> bool:
        """Whether bytes that the server writes begin with the answer of a send, which is lost."""
        if self.count >= self.count_max or b'"queueOffset"' not in data:
            return False
        (answer, *_) = FrameReader().receive(data)
        fields = answer.ext_fields or {}
        self.places.append((int(fields["queueId"]), int(fields["queueOffset"])))
        return True


@contextmanager
def lost_answers(count_max: int) -> Iterator[LostAnswers]:
    """Lose the answers of the next sends to any broker of this process."""
    lost = LostAnswers(count_max)
    flush = ServerConnection._flush

    def losing(self: ServerConnection) -> None:
        outgoing = self._connection.outgoing
        if lost.loses(b"".join(map(bytes, outgoing))):
            outgoing.clear()
            self.abort("a test loses the answer")
            return
        flush(self)

    with mock.patch.object(ServerConnection, "_flush", losing):
        yield lost
