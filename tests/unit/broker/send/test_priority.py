"""A priority topic puts each message into the queue of its priority."""

import asyncio
from pathlib import Path

from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.codec.properties import encode_properties_text
from cometmq.model.properties import PRIORITY
from cometmq.model.topic import TopicConfig


def lanes_of(tmp_path: Path, kind: str, priorities: list[str]) -> list[int]:
    """The queue of each message of a topic with four queues; all ask for queue 1."""
    queues: list[int] = []

    async def story(broker: Broker, client: Client) -> None:
        config = TopicConfig("t", 4, 4, attributes={"message.type": kind} if kind else {})
        broker.state.topics.put(config, broker.env.clock.now_ms())
        await asyncio.sleep(0)
        for round_number in range(2):  # the second time the topic is known
            for number, priority in enumerate(priorities):
                fields = {"UNIQ_KEY": f"id{round_number}{number}", "n": str(number)}
                if priority:
                    fields[PRIORITY] = priority
                sent = await client.send(b"x", e="1", i=encode_properties_text(fields))
                assert sent.code == 0
                queue_id = int(sent.ext_fields["queueId"])
                queues.append(queue_id)
                offset = sent.ext_fields["queueOffset"]
                got = await client.messages(
                    queueId=str(queue_id), queueOffset=offset, sysFlag="4", subscription="*"
                )
                assert got[0].properties["n"] == str(number)

    scenario(tmp_path, story)
    assert queues[: len(priorities)] == queues[len(priorities) :]
    return queues[: len(priorities)]


def test_a_message_goes_to_the_queue_of_its_priority(tmp_path: Path) -> None:
    """The highest queue takes all above it; without a priority the producer's choice counts."""
    priorities = ["0", "2", "3", "9", "", "-1", "high", "9" * 12]
    assert lanes_of(tmp_path, "PRIORITY", priorities) == [0, 2, 3, 3, 1, 1, 1, 1]


def test_other_topics_know_no_priority(tmp_path: Path) -> None:
    """The producer's queue counts."""
    assert lanes_of(tmp_path, "", ["0", "3"]) == [1, 1]
