"""Exact timers of a real broker: never early, once, recalled, and found again after a stop."""

import asyncio
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import SEND_DEFAULTS, Client, eventually, running, scenario
from tests.unit.broker.send.test_send_run import exchange, frame
from tests.unit.broker.transacting import stored

from cometmq.broker import Broker
from cometmq.broker.delay.wheel import loading as timer_loading
from cometmq.broker.delay.wheel.fetch import LoadedSlot, load_slot
from cometmq.codec.batch import encode_batch
from cometmq.codec.recall import decode_recall_handle
from cometmq.codec.stored_message import StoredMessage
from cometmq.codec.timer import decode_timer_checkpoint
from cometmq.model.names import TIMER_TOPIC
from cometmq.wire.command.fastjson import loads_object


def timed(key: str, due_ms: int) -> str:
    """Properties of a timed message."""
    return f"UNIQ_KEY\x01{key}\x02TIMER_DELIVER_MS\x01{due_ms}\x02"


async def arrived(broker: Broker, client: Client, count: int) -> list[StoredMessage]:
    store = broker.state.store
    await eventually(lambda: store.max_queue_offset("t", 0) >= count)
    found: list[StoredMessage] = []
    while len(found) < store.max_queue_offset("t", 0):
        found += await client.messages(queueOffset=str(len(found)))
    return found


def test_messages_arrive_in_order_of_their_times_and_never_early(tmp_path: Path) -> None:
    """Store times are compared with what was asked for, to the millisecond."""

    async def story(broker: Broker, client: Client) -> None:
        now_ms = broker.env.clock.now_ms()
        asked = {f"K{delay}": now_ms + delay for delay in (3900, 2700, 3301, 3300, 2250, 40)}
        for key, due_ms in asked.items():
            answer = await client.send(key.encode(), i=timed(key, due_ms))
            assert answer.code == 0
            if "recallHandle" in answer.ext_fields:  # else it was due when the broker had it
                handle = decode_recall_handle(answer.ext_fields["recallHandle"])
                assert (handle.topic, handle.uniq_key) == ("t", key)
                assert handle.time_ms <= due_ms
        found = await arrived(broker, client, len(asked))
        assert [message.body.decode() for message in found] == sorted(asked, key=asked.__getitem__)
        for message in found:
            key = message.properties["UNIQ_KEY"]
            assert message.store_timestamp_ms >= asked[key]
            if "TIMER_OUT_MS" in message.properties:
                assert message.properties["REAL_TOPIC"] == "t"
                assert int(message.properties["TIMER_OUT_MS"]) < asked[key]
                assert "TIMER_DEQUEUE_MS" in message.properties

    scenario(tmp_path, story)


def test_pending_messages_are_delivered_by_the_next_life_of_the_broker_once(
    tmp_path: Path,
) -> None:
    """Those of a second that was partly delivered too."""

    async def main() -> None:
        async with running(tmp_path) as broker:
            base_ms = broker.env.clock.now_ms() // 1000 * 1000 + 4000
            asked = {f"K{n}": base_ms + 100 * n for n in range(1, 30)}
            client = await Client(broker.env, broker.address).open()
            for key, due_ms in asked.items():
                assert (await client.send(b"x", i=timed(key, due_ms))).code == 0
            await arrived(broker, client, 3)
            await client.close()
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            found = await arrived(broker, client, len(asked))
            await eventually(lambda: broker.timers.pending_count() == 0)
            found = await arrived(broker, client, len(asked))
            assert [message.properties["UNIQ_KEY"] for message in found] == list(asked)
            assert all(
                message.store_timestamp_ms >= asked[message.properties["UNIQ_KEY"]]
                for message in found
            )
            await client.close()

    asyncio.run(main())


def test_a_recalled_message_does_not_arrive(tmp_path: Path) -> None:
    """Neither one whose slot is loaded nor one that is far away; others of its slot do."""

    async def story(broker: Broker, client: Client) -> None:
        base_ms = broker.env.clock.now_ms() // 1000 * 1000 + 9000
        handles = {}
        for number in range(4):
            for due_ms in (base_ms - 2000, base_ms):
                key = f"K{number}x{due_ms}"
                answer = await client.send(b"x", i=timed(key, due_ms + 500))
                handles[key] = answer.ext_fields["recallHandle"]
        recalled = [key for key in handles if key.startswith(("K1", "K2"))]
        for key in recalled:
            answer = await client.call(
                370, {"topic": "t", "recallHandle": handles[key], "producerGroup": "pg"}
            )
            assert (answer.code, answer.ext_fields["msgId"]) == (0, key)
        found = await arrived(broker, client, 4)
        await eventually(lambda: broker.timers.read_ms > base_ms)
        found = await arrived(broker, client, 4)
        assert {message.properties["UNIQ_KEY"] for message in found} == handles.keys() - recalled
        answer = await client.call(370, {"topic": "t", "recallHandle": handles[f"K0x{base_ms}"]})
        assert answer.code == 604
        info = loads_object((await client.call(28)).body, "runtime info")["table"]
        assert isinstance(info, dict)
        assert (info["timerCongestNum"], info["timerOffsetBehind"]) == ("0", "0")
        assert answer.remark is not None
        assert "timestamp invalid" in answer.remark

    scenario(tmp_path, story)


@pytest.mark.parametrize("is_over", [False, True], ids=["within its second", "after it"])
def test_a_stop_leaves_no_delivered_timer_to_a_java_broker(tmp_path: Path, is_over: bool) -> None:
    """It delivers what it finds from the slot on that `timercheck` names.

    Progress is written in the turn that delivers, and again when the broker stops.
    """

    async def main() -> int:
        async with running(tmp_path, timerFlushIntervalMs="1") as broker:
            client = await Client(broker.env, broker.address).open()
            slot_ms = broker.env.clock.now_ms() // 1000 * 1000 + 2000
            assert (await client.send(b"x", i=timed("K", slot_ms + 100))).code == 0
            await arrived(broker, client, 1)
            if is_over:
                assert broker.timers is not None
                timers = broker.timers
                await eventually(lambda: timers.read_ms > slot_ms)
            await client.close()
        return slot_ms

    slot_ms = asyncio.run(main())
    check = decode_timer_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert check.read_time_ms > slot_ms


OWN = "TIMER_MOVED_FROM\x010\x02TIMER_DUE_MS\x015\x02"


def test_a_client_cannot_say_that_its_message_replaces_another(tmp_path: Path) -> None:
    """Alone, beside others in one read, and in a batch: what only the broker says is taken out."""

    async def story(broker: Broker, client: Client) -> None:
        far_ms = broker.env.clock.now_ms() + 3_600_000
        near_ms = broker.env.clock.now_ms() + 1500
        text = timed("K0", far_ms) + OWN
        assert (await client.send(b"first", i=timed("K9", far_ms))).code == 0
        for own in (text, timed("K1", near_ms) + OWN, OWN + timed("K2", near_ms)):
            assert (await client.send(b"x", i=own)).code == 0
        run = b"".join(frame(number, i=OWN + timed(f"R{number}", far_ms)) for number in range(3))
        assert [one.code for one in await exchange(broker, run, 3)] == [0, 0, 0]
        body = encode_batch(
            [
                (0, b"x", (timed("B0", near_ms) + OWN).encode()),
                (0, b"x", (OWN + timed("B1", far_ms)).encode()),
            ]
        )
        answer = await client.call(
            320, {**SEND_DEFAULTS, "m": "true", "i": "UNIQ_KEY\x01b\x02"}, body
        )
        assert answer.code == 0
        waiting = stored(broker, TIMER_TOPIC)
        assert len(waiting) == 9
        for message in waiting:
            assert not {"TIMER_MOVED_FROM", "TIMER_DUE_MS"} & message.properties.keys()
        found = await arrived(broker, client, 3)
        assert {one.properties["UNIQ_KEY"] for one in found} == {"K1", "K2", "B0"}
        assert all(one.store_timestamp_ms >= near_ms for one in found)
        assert (await client.send(b"x", b=TIMER_TOPIC, e="0")).code == 16

    scenario(tmp_path, story)


def test_a_stop_waits_for_the_slot_that_is_being_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else nobody would know what is left, and a Java broker deliver what was delivered."""

    async def first_life() -> int:
        async with running(tmp_path, timerFlushIntervalMs="1") as broker:
            client = await Client(broker.env, broker.address).open()
            slot_ms = broker.env.clock.now_ms() // 1000 * 1000 + 3000
            is_read = threading.Event()
            timers = broker.timers
            assert timers is not None

            def load_slowly(store: Any, reader: Any, wanted_ms: int, *rest: Any) -> LoadedSlot:
                if wanted_ms > slot_ms:
                    is_read.set()
                    limit_s = time.monotonic() + 20
                    while not timers._is_stopped and time.monotonic() < limit_s:
                        time.sleep(0.005)
                return load_slot(store, reader, wanted_ms, *rest)

            monkeypatch.setattr(timer_loading, "load_slot", load_slowly)
            for key, out_ms in (("K", slot_ms + 100), ("L", slot_ms + 2100)):
                assert (await client.send(key.encode(), i=timed(key, out_ms))).code == 0
            await arrived(broker, client, 1)
            await eventually(is_read.is_set)
            assert timers._loading.is_loading
            await client.close()
        return slot_ms

    async def second_life() -> None:
        async with running(tmp_path) as broker:
            client = await Client(broker.env, broker.address).open()
            await arrived(broker, client, 2)
            await client.close()

    slot_ms = asyncio.run(first_life())
    check = decode_timer_checkpoint((tmp_path / "config" / "timercheck").read_bytes())
    assert check.read_time_ms > slot_ms
    asyncio.run(second_life())
