"""What a configuration file says beyond ours survives our writes."""

import asyncio
import json
from pathlib import Path
from typing import Any

from tests.unit.broker.harness import Client, running, scenario

from cometmq.broker import Broker
from cometmq.server.config_file import ForeignKeys


def test_foreign_keys_come_back() -> None:
    """At the top and in entries; ours win; what is gone takes its foreign keys with it."""
    keys = ForeignKeys(("dataVersion", "table"), "table", ("perm",))
    keys.remember(
        b'{"dataVersion":{},"future":{1:2},"table":{"A":{"perm":6,"tier":"cold"},"B":{"x":1}}}'
    )
    written = json.loads(keys.add_to(b'{"dataVersion":{"counter":2},"table":{"A":{"perm":4}}}'))
    assert written == {
        "dataVersion": {"counter": 2},
        "future": {"1": 2},
        "table": {"A": {"perm": 4, "tier": "cold"}},
    }
    # B was deleted; a new topic of that name is another one.
    again = json.loads(keys.add_to(b'{"table":{"A":{"perm":4},"B":{"perm":6}}}'))
    assert again["table"]["B"] == {"perm": 6}


def test_nothing_foreign_changes_nothing() -> None:
    """The bytes that were encoded are written as they are, also after a file that is damaged."""
    keys = ForeignKeys(("dataVersion",))
    keys.remember(b'{"dataVersion":{}}')
    assert keys.add_to(b'{"dataVersion": 1}') == b'{"dataVersion": 1}'
    keys.remember(b"{")
    assert keys.add_to(b"[]") == b"[]"


def commit(queue_id: str) -> dict[str, str]:
    """UPDATE_CONSUMER_OFFSET to 1."""
    group = {"consumerGroup": "TOOLS_CONSUMER", "topic": "t"}
    return {**group, "queueId": queue_id, "commitOffset": "1"}


def test_a_broker_writes_foreign_keys_back(tmp_path: Path) -> None:
    """All four files, each changed by what a client does."""
    folder = tmp_path / "config"

    async def fill(broker: Broker, client: Client) -> None:
        await client.send(b"one")
        await client.send(b"later", i="DELAY\x011\x02")
        await client.call(15, commit("0"))

    scenario(tmp_path, fill)

    def change(name: str, table: str, entry: str) -> None:
        path = folder / name
        data = json.loads(path.read_bytes())
        data["fromTheFuture"] = {"a": [1, 2]}
        if entry:
            data[table][entry]["alsoNew"] = "kept"
        path.write_text(json.dumps(data), "utf-8")

    change("topics.json", "topicConfigTable", "t")
    change("subscriptionGroup.json", "subscriptionGroupTable", "TOOLS_CONSUMER")
    change("consumerOffset.json", "", "")
    (folder / "delayOffset.json").write_text('{"offsetTable":{3:0},"fromTheFuture":{"a":[1,2]}}')

    async def write_all() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await client.send(b"two", b="another", e="0")
            await client.call(15, commit("1"))
            broker.state.groups.find("new", 1)
            broker.state.groups_changed()
            schedule = broker.services.schedule
            assert schedule is not None
            schedule._revision += 1
            await client.close()

    asyncio.run(write_all())
    names = ("topics.json", "subscriptionGroup.json", "consumerOffset.json", "delayOffset.json")
    files: dict[str, Any] = {name: json.loads((folder / name).read_bytes()) for name in names}
    for name in names:
        assert files[name]["fromTheFuture"] == {"a": [1, 2]}, name
    topics = files["topics.json"]["topicConfigTable"]
    assert topics["t"]["alsoNew"] == "kept"
    assert "another" in topics
    groups = files["subscriptionGroup.json"]["subscriptionGroupTable"]
    assert groups["TOOLS_CONSUMER"]["alsoNew"] == "kept"
    assert files["consumerOffset.json"]["offsetTable"]["t@TOOLS_CONSUMER"] == {"0": 1, "1": 1}
