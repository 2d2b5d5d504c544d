"""A broker with too little memory refuses sends, and goes on serving consumers."""

from pathlib import Path

from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.broker.memory_watch import MemoryWatch


def test_sends_are_refused_while_memory_is_short(tmp_path: Path) -> None:
    """With what was measured; offsets are still committed, messages still pulled."""

    async def story(broker: Broker, client: Client) -> None:
        watch = MemoryWatch(broker.state)
        least = broker.config.free_memory_min
        assert (await client.send(b"before")).code == 0
        watch.check(least)
        assert (await client.send(b"enough")).code == 0
        watch.check(least - 1)
        for _ in range(2):
            refused = await client.send(b"short")
            assert refused.code == 14
            assert "63 MiB of memory are left" in str(refused.remark)
        queue_ids = {"queueId": "0"}
        assert (await client.pull(**queue_ids)).code in (0, 19)
        watch.check(least)
        assert (await client.send(b"not yet")).code == 14
        watch.check(None)
        watch.check(least * 2)
        assert (await client.send(b"after")).code == 0

    scenario(tmp_path, story)


def test_what_others_refuse_stays(tmp_path: Path) -> None:
    """A refusal that stood before is neither replaced nor lifted."""

    async def story(broker: Broker, client: Client) -> None:
        from cometmq.errors import StoreFollows

        watch, store = MemoryWatch(broker.state), broker.state.store
        standing = StoreFollows("another reason")
        store.refuse_puts(standing)
        watch.check(0)
        watch.check(1 << 40)
        assert store.standing_refusal is standing

    scenario(tmp_path, story)
