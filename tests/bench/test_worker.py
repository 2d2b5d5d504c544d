"""Every raw load gives true counts, and every cheat of a server is noticed."""

import asyncio
from typing import Any

import pytest
from bench.base.frames import Targets
from bench.base.loads import RAW_LOADS, Load, Rounds, WorkOrder
from bench.worker.verify import VerifyFailed
from bench.worker.worker import run_order

SECONDS = 0.05


def work(broker: Any, load: Load, **more: Any) -> Rounds:
    """Run one load against a memory broker on the same loop."""

    async def main() -> Rounds:
        await broker.listen()
        try:
            order = WorkOrder(
                load=load,
                address=broker.address,
                seconds=SECONDS,
                warm_up_s=0.01,
                fill_messages=1600,
                **{"rounds": 1, **more},
            )
            return await run_order(order)
        finally:
            broker.close()

    return asyncio.run(main())


@pytest.mark.parametrize("load", RAW_LOADS, ids=lambda load: load.name)
def test_each_raw_load_counts_what_the_server_holds(load: Load, memory_broker: Any) -> None:
    """In every round the numbers of acknowledged, stored and read messages are equal."""
    broker = memory_broker()
    result = work(broker, load, rounds=2)
    assert len(result.rounds) == 2
    stored = sum(len(records) for records in broker.queues.values())
    assert sum(r.acknowledged for r in result.rounds) == stored
    assert all(r.acknowledged == r.read_back > 0 for r in result.rounds)
    assert all(r.rate > 0 and r.seconds > 0 for r in result.rounds)
    assert all(r.p50_us is not None and r.p50_us <= (r.max_us or 0) for r in result.rounds)


def test_requests_are_spread_over_all_queues(memory_broker: Any) -> None:
    """Requests rotate over topics and queues as a producer's do."""
    broker = memory_broker()
    work(broker, Load(name="x", kind="send", topics=3, queues=4))
    targets = Targets("", 3, 4)
    assert len(broker.queues) == targets.queues
    sizes = [len(records) for records in broker.queues.values()]
    assert max(sizes) - min(sizes) <= 1


def lose(nth: int, body: bytes) -> list[bytes]:
    """Acknowledge the 12th message without storing it."""
    return [] if nth == 12 else [body]


def alter(nth: int, body: bytes) -> list[bytes]:
    """Change one byte of the 12th message and store a correct CRC."""
    return [body[:-1] + bytes([body[-1] ^ 1])] if nth == 12 else [body]


def double(nth: int, body: bytes) -> list[bytes]:
    """Store the 12th message twice."""
    return [body, body] if nth == 12 else [body]


def swap(nth: int, body: bytes) -> list[bytes]:
    """Store another body in the 12th message."""
    return [b"0" * 12 + body[12:]] if nth == 12 else [body]


@pytest.mark.parametrize("kind", ["send", "end-to-end"])
@pytest.mark.parametrize("fault", [lose, alter, double, swap])
def test_a_server_that_cheats_gets_no_figure(fault: Any, kind: Any, memory_broker: Any) -> None:
    """A round with one lost, altered, doubled or swapped message does not count."""
    load = Load(name="x", kind=kind, connections=2, window=8)
    with pytest.raises(VerifyFailed):
        # What is lost never comes: that is not waited for long.
        work(memory_broker(alter=fault), load, catch_up_s=0.5)


def test_a_server_that_cheats_on_pulls_gets_no_figure(memory_broker: Any) -> None:
    """A pulled body that differs from the stored one is noticed by size or by sample."""
    broker = memory_broker()
    honest = broker.pull

    def short(request: Any) -> Any:
        # Timed pulls ask for 30 here, the reading back for 32.
        if request.ext_fields["maxMsgNums"] == "30":
            request.ext_fields["maxMsgNums"] = "29"
            answer = honest(request)
            return answer.replace(b'"nextBeginOffset":"29"', b'"nextBeginOffset":"30"')
        return honest(request)

    broker.pull = short
    with pytest.raises(VerifyFailed, match="other bytes"):
        work(broker, Load(name="x", kind="pull", queues=2, pull_count=30))


def test_refused_requests_void_a_round_and_are_quoted(memory_broker: Any) -> None:
    """The report quotes code and remark of a refused request."""
    with pytest.raises(VerifyFailed, match=r"code 2: \[PCBUSY\]"):
        work(memory_broker(refuse_every=10), Load(name="x", kind="send", window=4))


def test_expired_messages_may_be_missing_at_the_old_end_only(memory_broker: Any) -> None:
    """With `may_expire` messages may lack at a queue's start, but not in its middle."""
    broker = memory_broker()
    honest = broker.pull

    def expired(request: Any) -> Any:
        if int(request.ext_fields["queueOffset"]) < 5:
            request.ext_fields["queueOffset"] = "5"
        return honest(request)

    broker.pull = expired
    load = Load(name="x", kind="send", window=8, queues=2, may_expire=True)
    result = work(broker, load)
    assert result.rounds[0].expired == 10
    assert result.rounds[0].acknowledged == result.rounds[0].read_back + 10
    with pytest.raises(VerifyFailed):
        work(memory_broker(alter=lose), load)


def test_restart_check_reads_what_another_process_filled(memory_broker: Any, tmp_path: Any) -> None:
    """The check compares the queues with the acknowledgements that the fill wrote to a file."""
    state = str(tmp_path / "acks.npz")
    load = Load(name="x", kind="fill", batch_count=10, queues=4)
    broker = memory_broker()
    work(broker, load, state_path=state)
    stored = sum(len(records) for records in broker.queues.values())
    check = Load(name="x", kind="check", batch_count=10, queues=4)
    result = work(broker, check, state_path=state)
    assert result.rounds[0].read_back == stored >= 1600
    next(iter(broker.queues.values())).pop()
    with pytest.raises(VerifyFailed, match="missing"):
        work(broker, check, state_path=state)


def test_echo_rounds_come_in_turn(memory_broker: Any) -> None:
    """With an echo address every round has an echo round beside it."""
    echo = memory_broker()

    async def main() -> Rounds:
        broker = memory_broker()
        await broker.listen()
        await echo.listen()
        order = WorkOrder(
            load=RAW_LOADS[1],
            address=broker.address,
            echo_address=echo.address,
            rounds=2,
            seconds=SECONDS,
            warm_up_s=0.01,
        )
        result = await run_order(order)
        broker.close()
        echo.close()
        return result

    result = asyncio.run(main())
    assert (len(result.rounds), len(result.echo)) == (2, 2)
    assert all(r.read_back == 0 for r in result.echo)
    assert echo.messages > 0
