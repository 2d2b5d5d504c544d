"""A producer's repetitions at the broker: one message, one answer, also after a restart."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from tests.unit.broker.harness import Client, running
from tests.unit.broker.send.test_send_run import bodies, exchange, frame

from cometmq import native
from cometmq.broker import Broker
from cometmq.codec.batch import encode_batch
from cometmq.core.extensions.producer_sequences import WINDOW
from cometmq.errors import DiskFull
from cometmq.store.base.disk import RealDisk
from cometmq.wire.command.command import RemotingCommand

FILE = "config/cometmqSequences.json"


def properties(number: int, producer: str = "p.1", **more: str) -> str:
    entries = {"UNIQ_KEY": f"{number:032X}", **more, "PRODUCER_SEQ": f"{producer}:{number}"}
    return "".join(f"{name}\x01{value}\x02" for name, value in entries.items())


def place(answer: RemotingCommand) -> tuple[int, str, str, str]:
    """Where an answer says that its message is; a message id ends with a physical offset."""
    fields = answer.ext_fields or {}
    physical_offsets = ",".join(name[-16:] for name in fields["msgId"].split(","))
    return answer.code, fields["queueId"], fields["queueOffset"], physical_offsets


async def leave(broker: Broker, store: Path, copy: Path) -> None:
    """Copy the files as a kill leaves them now, while no worker writes one."""
    await broker.services.files.settle(30)
    shutil.copytree(store, copy)


def told(
    path: Path, *stories: Callable[[Broker, Client], Awaitable[None]], **settings: Any
) -> None:
    """Run each story in a life of the broker of its own, which begins as after a kill."""

    async def main() -> None:
        for number, story in enumerate(stories):
            async with running(path / str(number), **settings) as broker:
                client = await Client(broker.env, broker.address).open()
                try:
                    await story(broker, client)
                    await leave(broker, path / str(number), path / str(number + 1))
                finally:
                    await client.close()

    asyncio.run(main())


async def first(broker: Broker, client: Client) -> None:
    """Store a message, so that the topic is known and the file is there."""
    assert (await client.send(b"first", i=properties(1))).code == 0


@pytest.mark.parametrize("is_sync", [False, True])
def test_a_repetition_is_answered_as_the_first(tmp_path: Path, is_sync: bool) -> None:
    """Later, with another body, to another queue, and from a second connection."""

    async def story(broker: Broker, client: Client) -> None:
        stored = [await client.send(b"%d" % number, i=properties(number)) for number in range(5)]
        other = await Client(broker.env, broker.address).open()
        again = [await other.send(b"no", i=properties(n), e="2") for n in range(4, -1, -1)]
        await other.close()
        assert [place(answer) for answer in again[::-1]] == [place(answer) for answer in stored]
        assert {answer.code for answer in stored} == {0}
        assert await bodies(client) == [b"0", b"1", b"2", b"3", b"4"]
        (message, *_) = await client.messages()
        assert message.properties["PRODUCED_SEQ"] == "p.1:0"
        assert "PRODUCER_SEQ" not in message.properties

    told(tmp_path, story, flushDiskType="SYNC_FLUSH" if is_sync else "ASYNC_FLUSH")


def test_many_in_one_read(tmp_path: Path) -> None:
    """New ones, known ones and twins of this read, between plain messages."""

    async def story(broker: Broker, client: Client) -> None:
        await first(broker, client)
        numbers = [2, 3, 2, 1, 4, 4, 5]
        frames = [frame(n, b"%d" % n, i=properties(n)) for n in numbers] + [frame(99, b"plain")]
        frames.insert(3, frame(98, b"plain"))
        answers = await exchange(broker, b"".join(frames), len(frames))
        places = {answer.opaque: place(answer) for answer in answers}
        assert len(places) == 7
        assert len(set(places.values())) == 7, "the twins of this read have one answer"
        stored = [b"first", b"2", b"3", b"plain", b"4", b"5", b"plain"]
        assert await bodies(client) == stored

    told(tmp_path, story)


def test_a_kill_forgets_nothing(tmp_path: Path) -> None:
    """Neither what the file has nor what only the log has; a stop forgets nothing either."""
    places: dict[int, Any] = {}

    async def send(client: Client, number: int) -> None:
        answer = await client.send(b"%d" % number, i=properties(number))
        assert place(answer) == places.setdefault(number, place(answer))

    async def life(broker: Broker, client: Client) -> None:
        count = len(places)
        for number in range(count + 3):
            await send(client, number)
        broker.services.files._files["cometmqSequences.json"].save_if_changed()
        await broker.services.files.settle(10)
        for number in range(count + 6):
            await send(client, number)
        expected = [b"%d" % number for number in range(count + 6)]
        assert await bodies(client) == expected

    told(tmp_path, life, life, life)


def test_what_the_log_lost_is_stored_again(tmp_path: Path) -> None:
    """A power cut may leave the file with more messages than the log has."""

    async def main() -> None:
        async with running(tmp_path / "0") as broker:
            client = await Client(broker.env, broker.address).open()
            await first(broker, client)
            await leave(broker, tmp_path / "0", tmp_path / "1")
            await client.send(b"lost", i=properties(2))
            await client.close()
        # The log of the first moment, the file of the end.
        shutil.copy(tmp_path / "0" / FILE, tmp_path / "1" / FILE)
        async with running(tmp_path / "1") as broker:
            client = await Client(broker.env, broker.address).open()
            assert (await client.send(b"lost", i=properties(2))).code == 0
            assert await bodies(client) == [b"first", b"lost"]
            await client.close()

    asyncio.run(main())


def test_an_old_number_is_refused(tmp_path: Path) -> None:
    """It may be stored already; so is what is no sequence."""

    async def story(broker: Broker, client: Client) -> None:
        await first(broker, client)
        assert (await client.send(b"new", i=properties(WINDOW + 1))).code == 0
        for number in (0, 1):
            answer = await client.send(b"old", i=properties(number))
            assert answer.code == 13
            assert "is not among the last" in (answer.remark or "")
        broken = await client.send(b"x", i="UNIQ_KEY\x01A\x02PRODUCER_SEQ\x01nobody\x02")
        assert (broken.code, "expected a producer's id" in (broken.remark or "")) == (13, True)
        assert await bodies(client) == [b"first", b"new"]

    told(tmp_path, story)


def test_a_refused_message_is_no_repetition(tmp_path: Path) -> None:
    """It is stored when it comes again."""

    async def story(broker: Broker, client: Client) -> None:
        await first(broker, client)
        store = broker.services.store
        store.refuse_puts(DiskFull("no room"))
        assert (await client.send(b"2", i=properties(2))).code != 0
        store.refuse_puts(None)
        assert (await client.send(b"2", i=properties(2))).code == 0
        assert (await client.send(b"2", i=properties(2))).code == 0
        assert await bodies(client) == [b"first", b"2"]

    told(tmp_path, story)


def test_a_batch_is_stored_once(tmp_path: Path) -> None:
    """Also what is left of one that a crash has torn; the answer has the offset of each."""

    def batch(*numbers: int) -> bytes:
        return encode_batch([(0, b"%d" % n, properties(n).encode()) for n in numbers])

    async def story(broker: Broker, client: Client) -> None:
        answers = [await client.send(batch(1, 2, 3), m="true", i="WAIT\x01true\x02") for _ in "12"]
        assert answers[0].code == 0
        assert place(answers[0]) == place(answers[1])
        torn = await client.send(batch(3, 4), m="true", i="WAIT\x01true\x02")
        ids = [place(answer)[3].split(",") for answer in (answers[0], torn)]
        assert ids[1][0] == ids[0][2]
        assert (torn.ext_fields or {})["queueOffset"] == "2"
        assert await bodies(client) == [b"1", b"2", b"3", b"4"]
        single = await client.send(b"2", i=properties(2))
        assert place(single)[3] == ids[0][1]

    told(tmp_path, story)


@pytest.mark.parametrize("kind", ["DELAY\x011\x02", "TIMER_DELAY_MS\x015000\x02", "half"])
def test_messages_that_wait_too(tmp_path: Path, kind: str) -> None:
    """A delayed, timed or half message is one message as well."""
    more = "TRAN_MSG\x01true\x02PGROUP\x01pg\x02" if kind == "half" else kind

    async def story(broker: Broker, client: Client) -> None:
        await first(broker, client)
        before = broker.services.store.max_physical_offset
        answers = [await client.send(b"waits", i=properties(2) + more) for _ in "123"]
        assert {place(answer) for answer in answers} == {place(answers[0])}
        assert answers[0].code == 0
        records = list(broker.services.store.records_from(before))
        numbers = [b"PRODUCED_SEQ\x01p.1:2\x02" in record.properties for record in records]
        assert numbers.count(True) == 1

    told(tmp_path, story)


def test_nothing_is_written_for_others(tmp_path: Path) -> None:
    """A broker whose producers use no sequences has no file of them; a use is written at once."""

    async def story(broker: Broker, client: Client) -> None:
        file = tmp_path / "0" / FILE
        assert (await client.send(b"x")).code == 0
        broker.services.files._files["cometmqSequences.json"].save_if_changed()
        await broker.services.files.settle(10)
        assert not file.exists()
        answers = await asyncio.gather(*[client.send(b"x", i=properties(n)) for n in (1, 2, 1)])
        assert file.exists()
        assert place(answers[0]) == place(answers[2]) != place(answers[1])

    told(tmp_path, story)


def test_the_first_use_waits_for_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that cannot write it stores nothing that it would forget."""
    write = RealDisk.write_atomic
    is_full = [False]

    def fail(self: RealDisk, path: str, data: bytes, *, is_private: bool = False) -> None:
        if is_full[0] and path.endswith("Sequences.json"):
            raise DiskFull("no room for it")
        write(self, path, data, is_private=is_private)

    monkeypatch.setattr(RealDisk, "write_atomic", fail)

    async def story(broker: Broker, client: Client) -> None:
        assert (await client.send(b"plain")).code == 0
        is_full[0] = True
        answer = await client.send(b"x", i=properties(1))
        assert answer.code != 0
        assert "Sequences.json" in (answer.remark or "")
        is_full[0] = False
        assert (await client.send(b"x", i=properties(1))).code == 0
        assert await bodies(client) == [b"plain", b"x"]

    told(tmp_path, story)


def test_a_message_that_is_passed_on_is_stored(tmp_path: Path) -> None:
    """A consumer may send what it got, with all its properties, as often as it likes."""

    async def story(broker: Broker, client: Client) -> None:
        await first(broker, client)
        (message,) = await client.messages()
        text = "".join(f"{name}\x01{value}\x02" for name, value in message.properties.items())
        for _ in "12":
            assert (await client.send(b"again", i=text)).code == 0
        assert await bodies(client) == [b"first", b"again", b"again"]

    async def after_a_kill(broker: Broker, client: Client) -> None:
        assert (await client.send(b"first", i=properties(1))).code == 0
        assert await bodies(client) == [b"first", b"again", b"again"]

    told(tmp_path, story, after_a_kill)


def test_the_core_takes_what_is_new(tmp_path: Path) -> None:
    """It serves new numbers beside plain sends; a run with a repetition is served in Python."""
    if native.SendEncoder is None:
        pytest.skip("the native core is not there")

    async def story(broker: Broker, client: Client) -> None:
        await first(broker, client)
        await client.send(b"plain")
        front = broker._server.front
        assert front is not None
        served: list[int] = []

        def counting(data: bytes, connection: Any, now_ms: int) -> Any:
            end, answers = front(data, connection, now_ms)
            served.append(end)
            return end, answers

        broker._server.front = counting
        new = frame(7, b"plain") + frame(8, b"2", i=properties(2))
        again = frame(9, b"plain") + frame(10, b"2", i=properties(2))
        answers = [*await exchange(broker, new, 2), *await exchange(broker, again, 2)]
        assert served == [len(new), 0]
        places = {answer.opaque: place(answer) for answer in answers}
        assert places[10] == places[8]
        assert await bodies(client) == [b"first", b"plain", b"plain", b"2", b"plain"]
        odd = ["p.1:03", "p.1:0", ":3", f"p.1:{1 << 62}", "é:3"]
        frames = [frame(n, b"odd", i=f"UNIQ_KEY\x01{n}\x02PRODUCER_SEQ\x01{text}\x02")
                  for n, text in enumerate(odd)]  # fmt: skip
        served.clear()
        codes = {a.opaque: a.code for a in await exchange(broker, b"".join(frames), len(odd))}
        assert codes == {0: 0, 1: 0, 2: 13, 3: 0, 4: 0}
        assert served == [0]

    told(tmp_path, story)
