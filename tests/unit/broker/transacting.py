"""What the tests of transactions share: half messages, their ends, what is in the queues."""

from __future__ import annotations

from tests.unit.broker.harness import Client

from cometmq.broker import Broker
from cometmq.codec.properties import encode_properties
from cometmq.codec.stored_message import StoredMessage, decode_messages
from cometmq.model.names import HALF_TOPIC, OP_HALF_TOPIC
from cometmq.store.base.results import GetResult, GetStatus
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["COMMIT", "GROUP", "ROLLBACK", "UNKNOWN", "Half", "end", "half", "ops", "stored"]

GROUP = "tx_group"
UNKNOWN, COMMIT, ROLLBACK = 0, 8, 12
_numbers = iter(range(1, 1 << 30))


class Half:
    """A half message as its producer knows it."""

    def __init__(self, queue_offset: int, physical_offset: int, uniq_key: str) -> None:
        self.queue_offset = queue_offset
        self.physical_offset = physical_offset
        self.uniq_key = uniq_key

    @classmethod
    def of_check(cls, command: RemotingCommand) -> Half:
        """What a check names."""
        ext = command.ext_fields
        return cls(
            int(ext["tranStateTableOffset"]), int(ext["commitLogOffset"]), ext.get("msgId", "")
        )


async def half(client: Client, body: bytes = b"half", /, **properties: str) -> Half:
    """Send a half message to topic t, queue 2."""
    uniq_key = properties.setdefault("UNIQ_KEY", f"TX{next(_numbers):030d}")
    own = {"PGROUP": GROUP, "TRAN_MSG": "true", "TAGS": "A", **properties}
    text = encode_properties(own).decode()
    answer = await client.send(body, e="2", i=text, f="4")
    assert answer.code == 0, answer.remark
    ext = answer.ext_fields
    assert ext["queueId"] == "2"
    assert ext["transactionId"] == uniq_key
    return Half(int(ext["queueOffset"]), int(ext["msgId"][16:], 16), uniq_key)


async def end(client: Client, half: Half, kind: int = COMMIT, /, **ext: str) -> RemotingCommand:
    """End it; other fields of the header as given."""
    fields = {
        "producerGroup": GROUP,
        "tranStateTableOffset": str(half.queue_offset),
        "commitLogOffset": str(half.physical_offset),
        "commitOrRollback": str(kind),
        "fromTransactionCheck": "false",
        "msgId": half.uniq_key,
        "transactionId": half.uniq_key,
        **ext,
    }
    return await client.call(RequestCode.END_TRANSACTION, fields)


def stored(broker: Broker, topic: str, queue_id: int = 0) -> list[StoredMessage]:
    """Everything readers see of a queue."""
    messages: list[StoredMessage] = []
    offset = 0
    while True:
        found = broker.state.store.get(topic, queue_id, offset, 100_000, allow_cold=True)
        assert isinstance(found, GetResult)
        if found.status is not GetStatus.FOUND:
            return messages
        # One answer ends where a file of the log does.
        messages += decode_messages(b"".join(found.chunks))
        offset = found.next_queue_offset


def ops(broker: Broker) -> list[bytes]:
    """Bodies of the op messages."""
    return [message.body for message in stored(broker, OP_HALF_TOPIC)]


def halves(broker: Broker) -> list[StoredMessage]:
    """Records of the half queue."""
    return stored(broker, HALF_TOPIC)
