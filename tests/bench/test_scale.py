"""The suite `scale` and its crowd of clients work against real brokers, at a tiny size."""

from pathlib import Path

import pytest
from bench.base.loads import SCALE_STEPS
from bench.main import run
from bench.suites import scale
from bench.suites.crowd import Background, CountingNameServer, heartbeat_body, look_up
from bench.suites.scale import Sizes, measure_scale
from bench.suites.suite import Settings

from cometmq.errors import ClientError
from cometmq.net.channel import ChannelPool
from cometmq.net.env import system_environment
from cometmq.wire.body.client import HeartbeatData
from cometmq.wire.command.command import RemotingCommand

NEEDS_PROC = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="needs /proc")
TINY = Sizes(topics=20, clients=12, connections=30, pulls=25)


@NEEDS_PROC
@pytest.mark.slow
@pytest.mark.processes
@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", SCALE_STEPS)
def test_each_step_gives_its_figures(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each step gives its figures and verified rows, and leaves no file."""
    monkeypatch.setattr(scale, "SETTLE_S", 0.05)
    settings = Settings(folder=tmp_path, rounds=1, seconds=0.1)
    rows, facts = measure_scale(name, settings, lambda text: None, TINY)
    assert [row.error for row in rows] == [""] * len(rows)
    assert all(row.rounds[0].read_back > 0 for row in rows)
    assert len(facts) >= (3 if name in {"topics", "clients"} else 1)
    assert list(tmp_path.iterdir()) == []
    by_name = {fact.name: fact for fact in facts}
    if name == "topics":
        # What RocketMQ sends every time; asking takes a data version and four names.
        assert by_name["regular registration, nothing changed"].holds
        assert by_name["registration for each"].holds


def test_a_smaller_scale_has_at_least_one_of_each() -> None:
    """A scale below one still has one of each."""
    assert TINY.smaller(10) == Sizes(2, 1, 3, 2)
    assert TINY.smaller(1000) == Sizes(1, 1, 1, 1)


def test_the_counting_name_server_counts_by_code() -> None:
    """The counting name server counts requests and bytes and answers that nothing changed."""
    with Background() as background:
        server = CountingNameServer()
        address = background.run(server.listen())

        async def ask() -> list[str]:
            pool = ChannelPool(system_environment())
            channel = await pool.get(address)
            answers = [
                await channel.request(RemotingCommand.request(code, {"ab": "cde"}, b"12"), 5000)
                for code in (103, 322, 322)
            ]
            await pool.close()
            return [answer.ext_fields["changed"] for answer in answers]

        assert background.run(ask()) == ["false"] * 3
        assert server.requests == {103: 1, 322: 2}
        assert server.request_bytes == {103: 7, 322: 14}
        server.forget()
        assert not server.requests
        background.run(server.close())


def test_a_heartbeat_of_the_crowd_is_one_a_broker_understands() -> None:
    """A broker understands client, group and subscription of the crowd's heartbeat."""
    data = HeartbeatData.decode(heartbeat_body("c@1", "G", "T", 7))
    assert data.client_id == "c@1"
    (consumer,) = data.consumers
    assert consumer.group_name == "G"
    assert [subscription.topic for subscription in consumer.subscriptions] == ["T"]


def test_a_route_that_is_refused_fails_the_look_up() -> None:
    """A look-up without a server fails and gives no figure."""
    with Background() as background, pytest.raises(ClientError, match=r"127\.0\.0\.1:1"):
        background.run(look_up("127.0.0.1:1", ["T"]))


def test_the_steps_can_be_listed_and_chosen(capsys: pytest.CaptureFixture[str]) -> None:
    """The steps are listed under the names that --only takes."""
    assert run(["--list"]) == 0
    listed = capsys.readouterr().out
    assert all(f"scale {name}" in listed for name in SCALE_STEPS)
