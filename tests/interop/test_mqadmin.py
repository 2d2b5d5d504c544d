"""RocketMQ's own mqadmin on our servers, each answer compared with that of RocketMQ's servers.

What is run, and which fields of the answers are not compared and why, stands in `mqadmin.toml`.
A plain run does without: `tests/golden/replay` sends our servers what mqadmin once sent, and
compares each answer with that of RocketMQ's.
"""

import difflib
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from interop.peers import Unavailable
from tests.interop.admin_stage import Admin, Answer, Step, both_clusters, load_table, normalised

TABLE = load_table(Path(__file__).resolve().with_name("mqadmin.toml"))
COMMANDS = [
    "addWritePerm",
    "allocateMQ",
    "brokerStatus",
    "checkMsgSendRT",
    "cleanExpiredCQ",
    "cleanUnusedTopic",
    "cloneGroupOffset",
    "clusterList",
    "consumeMessage",
    "consumerConnection",
    "consumerProgress",
    "consumerStatus",
    "deleteExpiredCommitLog",
    "deleteKvConfig",
    "deleteSubGroup",
    "deleteTopic",
    "getBrokerConfig",
    "getNamesrvConfig",
    "printMsg",
    "printMsgByQueue",
    "producerConnection",
    "queryMsgById",
    "queryMsgByKey",
    "queryMsgByOffset",
    "queryMsgByUniqueKey",
    "resetOffsetByTime",
    "sendMessage",
    "skipAccumulatedMessage",
    "statsAll",
    "topicClusterList",
    "topicList",
    "topicRoute",
    "topicStatus",
    "updateBrokerConfig",
    "updateKvConfig",
    "updateNamesrvConfig",
    "updateOrderConf",
    "updateSubGroup",
    "updateTopic",
    "updateTopicPerm",
    "wipeWritePerm",
]
"""Every command that has to work."""
MORE_COMMANDS = ["brokerConsumeStats", "getConsumerConfig", "producer", "queryCq"]
"""Others that ask codes of their own."""

PATIENCE_S = 10.0
Answers = dict[int, tuple[Answer, Answer]]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Answers]:
    """What RocketMQ's servers and ours answered to each step, in the order of the table."""
    try:
        with both_clusters(tmp_path_factory.mktemp("mqadmin")) as (theirs, ours):
            yield {step.number: ask_both(theirs, ours, step) for step in TABLE.steps}
    except Unavailable as error:
        pytest.skip(f"mqadmin: {error}")


def ask_both(theirs: Admin, ours: Admin, step: Step) -> tuple[Answer, Answer]:
    """One line on both clusters, repeated while it may still become equal."""

    def ask() -> tuple[Answer, Answer]:
        line = (step.command, *step.line)
        waiting = theirs.begin(*line), ours.begin(*line)
        return waiting[0](), waiting[1]()

    both = ask()
    deadline = time.monotonic() + PATIENCE_S
    while step.is_soon and time.monotonic() < deadline:
        if normalised(TABLE, step, both[0]) == normalised(TABLE, step, both[1]):
            break
        both = ask()
    return both


@pytest.mark.full
@pytest.mark.parametrize("command", [*COMMANDS, *MORE_COMMANDS])
def test_command_is_answered_as_by_rocketmq(command: str, answers: Answers) -> None:
    """The same words to the same line; where ours differs on purpose, it says why."""
    steps = [step for step in TABLE.steps if step.command == command]
    assert steps, f"no line of {command} was run"
    faults = []
    for step in steps:
        theirs, ours = answers[step.number]
        if step.differs:
            assert step.ours in ours.text(), step.title
            assert step.ours not in theirs.text(), step.title
            continue
        wanted, got = (normalised(TABLE, step, one).splitlines() for one in (theirs, ours))
        lines = list(difflib.unified_diff(wanted, got, "RocketMQ", "CometMQ", lineterm="", n=1))
        if lines:
            faults.append("\n".join([step.title, *lines]))
    assert faults == [], "\n\n".join(faults)


def test_every_command_has_its_lines() -> None:
    """The table covers all commands, with mistakes and unknown names as well."""
    wanted = [*COMMANDS, *MORE_COMMANDS]
    assert sorted(TABLE.commands()) == sorted(wanted)
    assert len(TABLE.steps) >= 186
    assert sum(bool(step.differs) for step in TABLE.steps) == 5
    reasons = [why for fields in TABLE.ignored.values() for why in fields.values()]
    assert len(reasons) >= 50
    assert all(len(why.split()) >= 3 for why in reasons)


@pytest.mark.full
def test_every_ignored_field_occurs(answers: Answers) -> None:
    """A rule that leaves out what no longer comes hides what comes instead."""
    stale = []
    for command, fields in TABLE.ignored.items():
        texts = [
            answer.text()
            for step in TABLE.steps
            if step.command == command
            for answer in answers[step.number][:2]
        ]
        for name in fields:
            if not any(TABLE.fields[name].search(text) for text in texts):
                stale.append(f"{command}: {name}")
    assert stale == []
