"""The commands that talk to a cluster, against a real one in this process."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result
from tests.cli.invoking import Run, invoke, rows

from cometmq.cli.main import root
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses topics of its own."""
    with threaded_cluster({}) as running:
        yield running


@pytest.fixture
def cometmq(cluster: EmbeddedCluster) -> Run:
    """`cometmq ...` with NAMESRV_ADDR set; a CometError becomes its exit code."""

    def run(*arguments: str, stdin: str | None = None, code: int = 0) -> Result:
        environment = {"NAMESRV_ADDR": cluster.name_server_address}
        return invoke(arguments, environment, code=code, stdin=stdin)

    return run


def test_topic_life(cometmq: Run) -> None:
    """Create, list, route, status, delete."""
    created = cometmq("topic", "create", "Life", "--queues", "4")
    assert created.stdout == "topic Life: 4 queues on each of 1 broker\n"
    listed = {row["topic"]: row for row in rows(cometmq("topic", "list", "--json"))}
    assert listed["Life"]["write_queues"] == 4
    assert not any(name.startswith(("%", "SCHEDULE_TOPIC")) for name in listed)
    with_system = {row["topic"] for row in rows(cometmq("topic", "list", "--all", "--json"))}
    assert "TBW102" in with_system
    (route,) = rows(cometmq("topic", "route", "Life", "--json"))
    assert (route["read_queues"], route["writable"]) == (4, True)
    assert [row["messages"] for row in rows(cometmq("topic", "status", "Life", "--json"))] == [
        0
    ] * 4
    assert cometmq("topic", "delete", "Life", "--yes").stdout == "topic Life: deleted\n"
    cometmq("topic", "delete", "Life", "--yes", code=4)
    cometmq("topic", "route", "Life", code=4)


def test_creating_an_existing_topic_neither_shrinks_it_nor_hides_messages(cometmq: Run) -> None:
    """Other settings are refused with the right verb; equal ones are a no-op with a sentence."""
    cometmq("topic", "create", "Existing", "--queues", "8")
    cometmq("produce", "Existing", "job", "--count", "16")
    again = cometmq("topic", "create", "Existing", "--queues", "8")
    assert again.stdout == "topic Existing: exists already with 8 queues on each of 1 broker\n"
    for queues, remedy in (("2", "topic shrink Existing --queues 2"), ("9", "topic grow Existing")):
        error = cometmq("topic", "create", "Existing", "--queues", queues, code=2).exception
        assert isinstance(error, click.ClickException)
        assert error.exit_code == 1
        assert remedy in error.message
        assert "8 queues" in error.message
    marked = cometmq("topic", "create", "Existing", "--queues", "8", "--order", code=2).exception
    assert "without the mark" in str(marked)
    read = cometmq("consume", "Existing", "--from", "first", "--until-end")
    assert read.stdout == "job\n" * 16


def test_shrinking_says_which_queues_lose_what(cometmq: Run) -> None:
    """The queues that go are listed; their messages are read before they disappear."""
    cometmq("topic", "create", "Shrinking", "--queues", "4")
    cometmq("produce", "Shrinking", "job", "--count", "8")
    shrink = ("topic", "shrink", "Shrinking", "--queues", "1")
    refused = cometmq(*shrink, stdin="n\n", code=2)
    assert "No consumer group reads Shrinking" in refused.output
    (route,) = rows(cometmq("topic", "route", "Shrinking", "--json"))
    assert (route["read_queues"], route["write_queues"]) == (4, 4)
    cometmq("consume", "Shrinking", "-g", "shrinkers", "--from", "first", "--count", "1")
    shown = cometmq(*shrink).stdout
    listed = [line.split() for line in shown.splitlines()]
    assert ["broker-a", "3", "2"] in listed
    assert "waits for shrinkers" in shown
    (route,) = rows(cometmq("topic", "route", "Shrinking", "--json"))
    assert (route["read_queues"], route["write_queues"]) == (4, 1)
    read = cometmq("consume", "Shrinking", "-g", "shrinkers", "--count", "7", "--wait", "20")
    assert read.stdout == "job\n" * 7


def test_deleting_asks_first(cometmq: Run) -> None:
    """Enter alone deletes nothing."""
    cometmq("topic", "create", "Asked")
    result = CliRunner().invoke(root, ["topic", "delete", "Asked"], input="\n")
    assert result.exit_code == 1
    assert "Delete topic Asked" in result.output
    assert len(rows(cometmq("topic", "status", "Asked", "--json"))) == 8


def test_message_there_and_back(cometmq: Run) -> None:
    """consume prints the message that produce sent."""
    cometmq("topic", "create", "Echo", "--queues", "1")
    options = ("--tag", "new", "--key", "7", "--key", "8", "--property", "shop=north")
    (sent,) = rows(cometmq("produce", "Echo", "déjà vu", *options, "--json"))
    assert (sent["status"], sent["queue_offset"]) == ("SEND_OK", 0)
    (line,) = cometmq("consume", "Echo", "--from", "first", "--count", "1", "--json").stdout.split(
        "\n"
    )[:-1]
    got = json.loads(line)
    assert got["body"] == "déjà vu"
    assert (got["tags"], got["keys"]) == ("new", ["7", "8"])
    assert got["properties"]["shop"] == "north"
    assert got["message_id"] == sent["message_id"]


def test_a_message_with_a_time_of_its_own(cometmq: Run) -> None:
    """A message with its own delivery time waits at the broker and has a recall handle."""
    cometmq("topic", "create", "Later", "--queues", "1")
    (far,) = rows(cometmq("produce", "Later", "far", "--deliver-at", "2027-01-01T00:00Z", "--json"))
    assert far["recall_handle"]
    cometmq("produce", "Later", "near", "--delay", "200ms")
    assert cometmq("consume", "Later", "--from", "first", "--count", "1").stdout == "near\n"


@pytest.mark.parametrize("late", [("--delay", "2h"), ("--delay-level", "18")])
def test_a_delayed_send_prints_no_queue_offset_of_the_timers_topic(
    cometmq: Run, late: tuple[str, str]
) -> None:
    """It printed the offset in the broker's own topic as the user's; now it has none yet."""
    cometmq("topic", "create", "Much-later", "--queues", "1")
    assert rows(cometmq("produce", "Much-later", "now", "--json"))[0]["queue_offset"] is not None
    (delayed,) = rows(cometmq("produce", "Much-later", "late", *late, "--json"))
    assert (delayed["status"], delayed["queue_offset"]) == ("SEND_OK", None)
    told = cometmq("produce", "Much-later", "late", *late).stdout.splitlines()[1]
    assert told.split()[5] == "-"


def test_consume_prints_what_a_format_asks_for(cometmq: Run) -> None:
    """Fields, escapes, queues and offsets; a wrong one lists what there is."""
    cometmq("topic", "create", "Formatted", "--queues", "1")
    for number in range(3):
        cometmq("produce", "Formatted", f"body {number}", "--key", f"k{number}", "--tag", "new")
    read = ("consume", "Formatted", "--from", "first", "--until-end")
    text = cometmq(*read, "--format", "%t %b:%p %o %g %k %S %s %B%%\\n").stdout
    assert text.splitlines()[1] == "Formatted broker-a:0 1 new k1 6 body 1 Ym9keSAx%"
    one = cometmq(*read, "--queue", "broker-a:0", "--offset", "2", "--format", "%s;").stdout
    assert one == "body 2;"
    assert "%S  length of the body" in cometmq("consume", "Formatted", "--format", "help").stdout
    for wrong in ("%x", "%", "\\q", "\\"):
        error = cometmq(*read, "--format", wrong, code=2).exception
        assert "%s body" in str(error)
    assert "it has broker-a:0" in str(cometmq(*read, "--queue", "broker-a:7", code=2).exception)
    cometmq(*read, "--offset", "1", code=2)
    cometmq("consume", "Formatted", "-g", "g", "--queue", "broker-a:0", code=2)
    cometmq(*read, "--json", "--format", "%s", code=2)


def test_consume_does_not_wait_without_a_word(cometmq: Run) -> None:
    """It says what it waits for and how to see what is stored; --quiet says nothing."""
    cometmq("topic", "create", "Waiting", "--queues", "2")
    assert cometmq("consume", "Waiting", "--wait", "0.1").stderr == (
        "waiting for messages of Waiting: reading 2 queues at the end; "
        "--from first prints the stored ones. 0.1 s without a message end this\n"
    )
    in_group = cometmq("consume", "Waiting", "--from", "first", "-g", "waiters", "--wait", "0.1")
    assert "group waiters goes on where it was; a new group begins at the first" in in_group.stderr
    assert cometmq("-q", "consume", "Waiting", "--wait", "0.1").stderr == ""
    assert cometmq("consume", "Waiting", "--until-end").stderr == ""


def test_a_topic_is_not_made_by_a_typing_error_in_silence(
    cometmq: Run, caplog: pytest.LogCaptureFixture
) -> None:
    """The sender reads it at once, and the broker logs who sent; a topic that exists is no news."""
    sent = cometmq("produce", "Ordrs", "x")
    assert "topic Ordrs did not exist" in sent.stderr
    assert "cometmq topic delete Ordrs" in sent.stderr
    (line,) = [one for one in caplog.records if "Ordrs" in one.getMessage()]
    assert (line.levelname, line.name) == ("WARNING", "cometmq.broker")
    assert "group cometmq_cli at 127.0.0.1:" in line.getMessage()
    assert cometmq("produce", "Ordrs", "x").stderr == ""


def test_file_of_lines_and_tag_filter(cometmq: Run, tmp_path: Path) -> None:
    """One message per line, blank lines left out; consume stops at the end by itself."""
    cometmq("topic", "create", "Lines", "--queues", "2")
    path = tmp_path / "lines.txt"
    path.write_text("one\n\ntwo\r\nthree\n", encoding="utf-8")
    sent = cometmq("produce", "Lines", "--file", str(path), "--tag", "file", "--linger", "1")
    assert sent.stdout == "sent 3 messages to Lines\n"
    cometmq("produce", "Lines", "--file", "-", "--tag", "pipe", stdin="four\n")
    read = cometmq("consume", "Lines", "--from", "first", "--until-end")
    assert sorted(read.stdout.split()) == ["four", "one", "three", "two"]
    read = cometmq("consume", "Lines", "--from", "0", "--tags", "pipe || x", "--until-end")
    assert read.stdout == "four\n"
    assert cometmq("consume", "Lines", "--until-end").stdout == ""


def test_group_progress(cometmq: Run) -> None:
    """What a group printed is committed, and shows as its progress."""
    cometmq("topic", "create", "Work", "--queues", "1")
    cometmq("produce", "Work", "job", "--count", "5")
    read = cometmq("consume", "Work", "--group", "crew", "--from", "first", "--count", "3")
    assert read.stdout == "job\n" * 3
    (queue,) = rows(cometmq("group", "offsets", "crew", "--json"))
    assert (queue["broker_offset"], queue["consumer_offset"], queue["lag"]) == (5, 3, 2)
    listed = {row["group"]: row for row in rows(cometmq("group", "list", "--json"))}
    assert listed["crew"] == {"group": "crew", "members": 0, "lag": 2, "topics": ["Work"]}
    assert rows(cometmq("group", "members", "crew", "--json")) == []
    (moved,) = rows(cometmq("group", "reset", "crew", "Work", "--to-earliest", "--yes", "--json"))
    assert (moved["consumer_offset"], moved["repeated"], moved["skipped"]) == (0, 3, 0)
    (queue,) = rows(cometmq("group", "offsets", "crew", "--json"))
    assert queue["lag"] == 5
    cometmq("group", "delete", "crew", "--yes", "--offsets")
    cometmq("group", "offsets", "crew", code=4)


def test_a_reset_without_a_target_does_not_skip_everything(cometmq: Run) -> None:
    """`group reset G T -y` names the targets; the preview and the prompt count skipped messages."""
    cometmq("topic", "create", "Skipping", "--queues", "2")
    cometmq("produce", "Skipping", "job", "--count", "6")
    cometmq("consume", "Skipping", "--group", "readers", "--from", "first", "--count", "6")
    cometmq("produce", "Skipping", "job", "--count", "10")
    reset = ("group", "reset", "readers", "Skipping")
    error = cometmq(*reset, "-y", code=2).exception
    assert isinstance(error, click.UsageError)
    assert "--to-latest" in error.message

    def lags() -> list[int]:
        return [row["lag"] for row in rows(cometmq("group", "offsets", "readers", "--json"))]

    assert sum(lags()) == 10
    shown = cometmq(*reset, "--to-latest", "--preview")
    assert "2 queues, 10 messages skipped, 0 repeated; nothing was moved" in shown.stderr
    assert sum(
        row["skipped"] for row in rows(cometmq(*reset, "--to-latest", "--preview", "--json"))
    )
    refused = cometmq(*reset, "--to-latest", stdin="n\n", code=2)
    assert "10 messages skipped, 0 repeated?" in refused.output
    assert sum(lags()) == 10
    assert sum(row["skipped"] for row in rows(cometmq(*reset, "--to-latest", "-y", "--json"))) == 10
    assert lags() == [0, 0]
    assert (
        sum(row["repeated"] for row in rows(cometmq(*reset, "--to-time", "0", "-y", "--json")))
        == 16
    )


def test_a_reset_to_an_offset_moves_the_named_queue_only(cometmq: Run) -> None:
    """--to-offset goes with --queue; an offset beyond the queue is refused with its range."""
    cometmq("topic", "create", "Single", "--queues", "2")
    cometmq("produce", "Single", "job", "--count", "10")
    cometmq("consume", "Single", "--group", "single", "--from", "first", "--count", "10")
    reset = ("group", "reset", "single", "Single", "-y", "--json")
    cometmq(*reset, "--to-offset", "2", code=2)
    cometmq(*reset, "--to-offset", "2", "--queue", "broker-a:9", code=2)
    error = cometmq(*reset, "--to-offset", "77", "--queue", "broker-a:1", code=2).exception
    assert "0 to 5" in str(error)
    (moved,) = rows(cometmq(*reset, "--to-offset", "2", "--queue", "broker-a:1"))
    assert (moved["from_offset"], moved["consumer_offset"], moved["repeated"]) == (5, 2, 3)
    offsets = rows(cometmq("group", "offsets", "single", "--json"))
    assert [row["consumer_offset"] for row in offsets] == [5, 2]


def test_a_group_is_moved_under_its_running_members(cometmq: Run, cluster: EmbeddedCluster) -> None:
    """A waiting consumer prints everything again after a reset, and continues from there."""
    cometmq("topic", "create", "Moved", "--queues", "1")
    cometmq("produce", "Moved", "line", "--count", "3")
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", "consume", "Moved", "-g", "movers", "--from", "first"],
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "NAMESRV_ADDR": cluster.name_server_address},
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(3)] == ["line\n"] * 3
        (moved,) = rows(
            cometmq("group", "reset", "movers", "Moved", "--to-earliest", "--yes", "--json")
        )
        assert moved["consumer_offset"] == 0
        assert [process.stdout.readline() for _ in range(3)] == ["line\n"] * 3
        process.terminate()
        assert process.stdout.read() == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupted_consumer_commits_what_it_printed(
    cometmq: Run, cluster: EmbeddedCluster, number: signal.Signals
) -> None:
    """After Ctrl-C or SIGTERM the next run continues after the last printed line."""
    topic, group = f"Stopped{number.name}", f"group-{number.name}"
    cometmq("topic", "create", topic, "--queues", "1")
    cometmq("produce", topic, "line", "--count", "5")
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", "consume", topic, "-g", group, "--from", "first"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "NAMESRV_ADDR": cluster.name_server_address},
    ) as process:
        assert process.stdout is not None
        assert [process.stdout.readline() for _ in range(5)] == ["line\n"] * 5
        process.send_signal(number)
        rest, said = process.communicate(timeout=30)
    assert (process.returncode, rest) == (130, "")
    assert said.endswith("\n\ncometmq: interrupted\n")
    (queue,) = rows(cometmq("group", "offsets", group, "--json"))
    assert queue["lag"] == 0


def test_onlooking_makes_no_group() -> None:
    """Reading without a group works where groups must be made by hand, and leaves none behind."""
    with threaded_cluster({"autoCreateSubscriptionGroup": "false"}) as strict:
        environment = {"NAMESRV_ADDR": strict.name_server_address}

        def run(*arguments: str) -> Result:
            return CliRunner(env=environment).invoke(
                root, arguments, standalone_mode=False, catch_exceptions=False
            )

        run("topic", "create", "Seen", "--queues", "1")
        run("produce", "Seen", "hello")
        assert run("consume", "Seen", "--from", "first", "--until-end").stdout == "hello\n"
        assert rows(run("group", "list", "--json")) == []


def test_fewer_messages_than_asked_for(cometmq: Run) -> None:
    """A script that wants five messages and gets one sees exit code 4."""
    cometmq("topic", "create", "Few", "--queues", "1")
    cometmq("produce", "Few", "only")
    asked = ("--from", "first", "--count", "5", "--wait", "0.5")
    assert cometmq("consume", "Few", *asked, code=4).stdout == "only\n"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (("produce", "bad topic!", "x"), 2, ("bad topic!",)),
        (("produce", "Any"), 2, ("BODY", "--file")),
        (("produce", "Any", "x", "-p", "nonsense"), 2, ("NAME=VALUE",)),
        (("produce", "Any", "--file", "no-such-file"), 2, ("no-such-file",)),
        (("produce", "Any", "x", "--delay", "soon"), 2, ("'soon'", "10s")),
        (("produce", "Any", "x", "--deliver-at", "noon"), 2, ("'noon'", "2026-12-24")),
        (("produce", "Any", "x", "--delay", "1s", "--delay-level", "1"), 2, ("give one of",)),
        (("consume", "NoSuchTopic", "--count", "1"), 4, ("NoSuchTopic",)),
        (("consume", "NoSuchTopic", "-g", "g", "--wait", "1"), 4, ("NoSuchTopic",)),
        (("consume", "Any", "--from", "yesterday"), 2, ("yesterday", "first")),
        (("consume", "Any", "--until-end", "-g", "g"), 2, ("--wait",)),
        (("topic", "create", "bad topic!"), 2, ("bad topic!",)),
        (("topic", "create", "X", "--cluster", "Nowhere"), 2, ("Nowhere", "DefaultCluster")),
        (("group", "offsets", "no_such_group"), 4, ("no_such_group",)),
    ],
)
def test_wrong_input_is_named(
    cometmq: Run, arguments: tuple[str, ...], code: int, words: tuple[str, ...]
) -> None:
    """Cause and next step, by exit code and in words."""
    result = cometmq(*arguments, code=code)
    error = result.exception
    text = result.output + (getattr(error, "message", None) or str(error))
    assert all(word in text for word in words), text


def test_silent_name_server_is_code_3(cometmq: Run) -> None:
    """The address that did not answer is in the message."""
    result = cometmq("topic", "list", "-n", "127.0.0.1:1", code=3)
    assert "127.0.0.1:1" in str(result.exception)
