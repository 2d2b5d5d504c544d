"""A failing plan prints what happened to machines and messages, and writes it as a page."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.planted.plants import PLANTS

from cometmq.testing.simulate import Report, run_plan
from cometmq.testing.simulate.__main__ import main, plan_from
from cometmq.testing.simulate.plan import COMMAND
from cometmq.testing.simulate.timeline import message_name, of_machines, of_messages
from cometmq.testing.simulate.timeline_page import page

# A simulation that fails ends where it is, with tasks that had not begun.
pytestmark = pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
FAILING = (
    "--seed 1 --flush SYNC_FLUSH --brokers 1 --name-servers 1 --lives 1 --steps 2 "
    "--workloads plain,retries --faults broker-kill@400,pause@1500"
)
ONCE_MORE = next(plant for plant in PLANTS if plant.name == "one try too many")


def failing() -> Report:
    with ONCE_MORE.planted():
        return run_plan(plan_from(FAILING.split()))


class Page(HTMLParser):
    """Counts the elements of a page, and checks that each is closed and that none loads a file."""

    VOID = frozenset({"meta"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.counts: dict[str, int] = {}

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.counts[tag] = self.counts.get(tag, 0) + 1
        assert not {"src", "href"} & dict(attributes).keys()
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in ("li", "tr", "td", "th"):
            while self.open[-1] != tag:
                self.open.pop()
        assert self.open.pop() == tag


def test_the_command_prints_the_plan_the_time_line_and_one_command(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """The printed plan is the shortest, and its command breaks the promise again."""
    with ONCE_MORE.planted():
        assert main([*FAILING.split(), "--pages", str(tmp_path)]) == 1
        lines = capsys.readouterr().out.splitlines()
        commands = [line for line in lines if line.startswith("  replay: ")]
        assert len(commands) == 1
        options = commands[0].removeprefix(f"  replay: {COMMAND} ").replace("''", "").split()
        plan = plan_from([*options, ""] if options[-1] == "--faults" else options)
        assert plan.workloads == ("retries",)
        assert plan.steps < 12
        again = run_plan(plan)
    assert again.failure is not None
    assert f"  {again.virtual_s:9.3f} s  {again.failure}" in lines
    assert "  1 messages of each kind: retries" in lines
    assert "  broker-0:" in lines
    named = re.search(r"retries/\d+", again.failure)
    assert named is not None
    begin = lines.index(f"  message {named[0]}:")
    steps = [line.split(" s  ")[1].split(" (")[0] for line in lines[begin + 1 :] if " (" in line]
    assert steps[:2] == ["made", "acknowledged"]
    assert steps.count("handler fails") >= 3
    written = tmp_path / f"seed-{plan.seed}.html"
    assert f"  page: {written}" in lines
    assert again.failure.replace("'", "&#x27;") in written.read_text()


def test_machines_have_lanes_with_their_crashes_and_pauses() -> None:
    """Each machine's lane has what happened to it, in order, and the first has the faults."""
    report = failing()
    assert report.failure is not None
    machines = of_machines(report)
    assert [event.detail for event in machines[""]][:2] == ["broker-kill", "pause"]
    broker = [event.kind for event in machines["broker-0"]]
    assert broker[:4] == ["serves", "crash", "restart", "serves"]
    paused = [events for events in machines.values() if any(e.kind == "pause" for e in events)]
    assert len(paused) == 1
    times = [event.at_s for event in report.events]
    assert times == sorted(times)


def test_the_page_stands_alone_and_has_every_lane() -> None:
    """The page names the promise, the plan, the command, each machine and each message."""
    report = failing()
    text = page(report)
    parsed = Page()
    parsed.feed(text)
    assert not parsed.open
    assert report.plan.command() in text
    assert "broker-kill at 0.400 s" in text
    messages = of_messages(report)
    for lane in (*filter(None, of_machines(report)), *messages):
        assert f">{lane}</text>" in text
    first = next(iter(messages))
    assert f"<details open><summary>message {first}</summary>" in text
    marked = sum(len(events) for events in messages.values())
    assert parsed.counts["circle"] > marked
    assert "line class='pause c1'" in text


@pytest.mark.parametrize(
    ("body", "name"),
    [
        (b"plain/3/......", "plain/3"),
        (b"retries/12/....never", "retries/12"),
        (b"27 of 3", "27 of 3"),
        (b"\xff.....", "\N{REPLACEMENT CHARACTER}"),
    ],
)
def test_a_message_has_a_short_name(body: bytes, name: str) -> None:
    """A message is named by its kind and number, whatever fills its body."""
    assert message_name(body) == name
