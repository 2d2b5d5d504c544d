"""Pending timers of each topic, as RocketMQ's file and its request 61 show them."""

import json
from pathlib import Path
from typing import Any

from tests.unit.broker.harness import Client, eventually, scenario

from cometmq.broker import Broker
from cometmq.wire.command.codes import RequestCode

JAVA = b"""{"dataVersion":{"counter":4,"stateVersion":0,"timestamp":5},
"timingCount":{"gone":{"count":0,"timeStamp":7},"t":{"count":9,"timeStamp":8}}}"""


async def shown(client: Client) -> dict[str, Any]:
    """The answer to GET_TIMER_METRICS."""
    answer = await client.call(RequestCode.GET_TIMER_METRICS)
    assert answer.code == 0, answer.remark
    found: dict[str, Any] = json.loads(answer.body)
    return found


def test_pending_messages_are_counted_by_topic(tmp_path: Path) -> None:
    """Recalled ones are not; topics with one hash are told apart; the file is read again."""
    path = tmp_path / "config" / "timermetrics"
    path.parent.mkdir()
    path.write_bytes(JAVA)

    async def first(broker: Broker, client: Client) -> None:
        now_ms = broker.env.clock.now_ms()
        handles = []
        # The last two names have the same hash in Java.
        for number, topic in enumerate(("t", "t", "t", "later_Aa", "later_BB", "later_BB")):
            properties = f"UNIQ_KEY\x01K{number}\x02TIMER_DELIVER_MS\x01{now_ms + 600_000}\x02"
            sent = await client.send(b"x", b=topic, i=properties)
            handles.append(sent.ext_fields["recallHandle"])
        recall = {"topic": "t", "recallHandle": handles[0], "producerGroup": "p"}
        assert (await client.call(RequestCode.RECALL_MESSAGE, recall)).code == 0
        await eventually(lambda: broker.timers.taken_count == 7)
        counts = {
            topic: one["count"] for topic, one in (await shown(client))["timingCount"].items()
        }
        assert counts == {"t": 2, "later_Aa": 1, "later_BB": 2}

    scenario(tmp_path, first)
    written = json.loads(path.read_bytes())
    assert {topic: one["count"] for topic, one in written["timingCount"].items()} == {
        "t": 2,
        "later_Aa": 1,
        "later_BB": 2,
    }
    assert written["dataVersion"]["counter"] > 4
    assert json.loads((path.parent / "timermetrics.bak").read_bytes()) == json.loads(JAVA)

    async def second(broker: Broker, client: Client) -> None:
        assert (await shown(client))["timingCount"] == written["timingCount"]

    scenario(tmp_path, second)


def test_a_broker_without_timers_writes_no_file(tmp_path: Path) -> None:
    """Nor does the request need any."""

    async def story(broker: Broker, client: Client) -> None:
        await client.send()
        assert (await shown(client))["timingCount"] == {}

    scenario(tmp_path, story)
    assert not (tmp_path / "config" / "timermetrics").exists()
