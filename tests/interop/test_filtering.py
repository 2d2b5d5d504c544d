"""SQL92 filters: ours against RocketMQ's own classes, and subscriptions of all clients at both."""

import base64
import os
import random
import subprocess
from collections.abc import Sequence
from typing import Any, Final

import pytest
from interop.driver import DriverError
from interop.peers import Unavailable, filter_command
from tests.interop.stage import OURS, Stage, check_flow, letter
from tests.sql92_cases import Generator, properties

from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.sql92.expression import Expression
from cometmq.errors import ExpressionIllegal, NotComparable

ANSWER_TIMEOUT_S = 600
REFUSED: Final = ["REFUSED"]
NAMED: Final = {True: "TRUE", False: "FALSE", None: "NULL"}
Messages = Sequence[dict[str, str]]


def ask(lines: Sequence[str]) -> list[list[str]]:
    """RocketMQ's answers, in order."""
    try:
        command = filter_command()
    except Unavailable as error:
        pytest.skip(str(error))
    answered = subprocess.run(
        command,
        input="".join(f"{line}\n" for line in lines),
        capture_output=True,
        text=True,
        timeout=ANSWER_TIMEOUT_S,
        check=True,
    )
    answers = [line.split("\t") for line in answered.stdout.splitlines()]
    assert len(answers) == len(lines), answered.stderr[-2000:]
    return answers


def coded(text: str) -> str:
    """A text as a field."""
    return base64.b64encode(text.encode()).decode()


def question(text: str, messages: Messages) -> str:
    """A filter and messages as a line."""
    fields = ["filter", coded(text)]
    for message in messages:
        fields.append("|")
        for name, value in message.items():
            fields += [coded(name), coded(value)]
    return "\t".join(fields)


def ours(text: str, messages: Messages) -> list[str]:
    """Our results in RocketMQ's spelling."""
    try:
        expression = Expression(text)
    except ExpressionIllegal:
        return REFUSED
    answers: list[str] = []
    for message in messages:
        try:
            answers.append(NAMED[expression.evaluate(message)])
        except NotComparable:
            answers.append("THROWN")
        assert expression.matches(message) is (answers[-1] == "TRUE"), (text, message)
    return answers


def up_to_the_error(text: str) -> str:
    """The part of a filter before the error that our parser reports."""
    while True:
        try:
            Expression(text)
        except ExpressionIllegal as error:
            lines = text.splitlines(keepends=True)
            position = sum(map(len, lines[: error.line - 1])) + error.column - 1
            if position >= len(text):
                return text
            text = text[:position]
        else:
            return text


def check_filters(seed: int, filter_count: int) -> None:
    """Random filters, whole and followed by what does not belong there, over random messages."""
    chance = random.Random(seed)
    generator = Generator(chance)
    texts: list[str] = []
    for _ in range(filter_count):
        text, _ = generator.filter()
        texts.append(text)
        if chance.random() < 0.2:
            other, _ = generator.filter(1)
            texts.append(text + chance.choice((" ", "\n", " % ", ") ", " = ", "'")) + other)
    messages = [[properties(chance) for _ in range(6)] for _ in texts]
    answers = ask([question(*pair) for pair in zip(texts, messages, strict=True)])
    seen = {"TRUE": 0, "FALSE": 0, "NULL": 0, "THROWN": 0, "REFUSED": 0, "behind": 0}
    for text, message, theirs in zip(texts, messages, answers, strict=True):
        answer = ours(text, message)
        if answer == REFUSED != theirs:
            # RocketMQ reads as far as it makes sense; ours says where that ends.
            seen["behind"] += 1
            answer = ours(up_to_the_error(text), message)
        assert answer == theirs, f"seed {seed}: {text!r} over {message}"
        for word in answer:
            seen[word] += 1
    assert min(seen.values()) > filter_count / 100, seen


def test_the_same_filters_the_same_answers() -> None:
    """Values, nulls, what throws and what is refused agree for a thousand filters."""
    check_filters(seed=1992, filter_count=1_000)


@pytest.mark.full
def test_many_filters() -> None:
    """The same for many more, new ones each time; SEED repeats them."""
    seed = int(os.environ.get("SEED") or random.SystemRandom().randrange(2**32))
    print(f"SEED={seed}")
    check_filters(seed, filter_count=30_000)


def test_what_rocketmq_takes_and_ours_refuses() -> None:
    """The rows of the list of differences: RocketMQ still answers as it says there."""
    theirs = {
        "a = 1 garbage": ["FALSE", "TRUE"],
        "a like 'x%'": ["FALSE", "FALSE"],
        "a + 1 > 2": ["FALSE", "FALSE"],
        "a = 012": ["TRUE", "FALSE"],
        "a = --1": ["FALSE", "TRUE"],
        "(" * 60 + "a = 1" + ")" * 60: ["FALSE", "TRUE"],
        " OR ".join(["a = 1"] * 600): ["FALSE", "TRUE"],
        "a = 1" + " " * 40_000: ["FALSE", "TRUE"],
    }
    messages = [{"a": "0"}, {"a": "1"}]
    assert ask([question(text, messages) for text in theirs]) == list(theirs.values())
    assert [ours(text, messages) for text in theirs] == [REFUSED] * len(theirs)


def test_a_comment_at_the_very_end() -> None:
    """Both take it: ours as a comment, RocketMQ as something behind the end."""
    text = "a = 1 -- the ones"
    messages = [{"a": "1"}, {"a": "2"}, {}]
    assert ask([question(text, messages)]) == [ours(text, messages)]
    assert ours(text, messages) == ["TRUE", "FALSE", "NULL"]


def test_the_same_bits() -> None:
    """Sizes, positions and bitmaps of all rates and of keys of all lengths."""
    chance = random.Random(7)
    cases: list[tuple[int, int, str]] = []
    for rate in range(1, 100):
        key = "".join(
            chance.choice("aZ#%_\u00e9\u4e2d\U0001f600") for _ in range(chance.randrange(70))
        )
        cases.append((rate, chance.choice((1, 2, 31, 32, 64, 128, 1000)), key))
    cases += [(20, 32, "g" * length) for length in range(40)]
    answers = ask([f"bloom\t{rate}\t{count}\t{coded(key)}" for rate, count, key in cases])
    for (rate, count, text), answer in zip(cases, answers, strict=True):
        bloom = BloomFilter(rate, count)
        bits = bloom.key_of(text)
        bitmap = base64.b64encode(bloom.bitmap([bits])).decode()
        mine = [bloom.hash_count, bloom.bit_count, *bits.positions, bitmap]
        assert answer == [str(field) for field in mine], (rate, count, text)


# -- subscriptions ----------------------------------------------------------------------------

WANTED: Final = "(amount > 5 AND color IN ('red', '\u84dd')) OR vip IS NOT NULL"
END: Final = " OR n = '-1'"
"""What `settle` sends comes to everybody."""


def colored(topic: str, count: int, first: int = 0) -> list[dict[str, Any]]:
    """Messages of all kinds, also without what the filter asks for."""
    letters: list[dict[str, Any]] = []
    for number in range(first, first + count):
        given = {"amount": str(number % 11), "color": ("red", "blue", "\u84dd")[number % 3]}
        if number % 5 == 0:
            del given["color"]
        if number % 7 == 0:
            given["amount"] = "many"
        if number % 13 == 0:
            given = {"vip": "yes"}
        letters.append(letter(topic, b"body %d" % number, number, properties=given))
    return letters


def wanted_of(letters: list[dict[str, Any]]) -> list[int]:
    """Which of them the filter takes."""
    expression = Expression(WANTED)
    return [place for place, one in enumerate(letters) if expression.matches(one["properties"])]


@pytest.mark.kind("SQL92")
def test_what_matches_comes_message_by_message(stage: Stage) -> None:
    """A backlog and what follows, to the client under test and to ours; nothing else comes."""
    topic = stage.topic()
    selected = {topic: WANTED + END}
    early = stage.push(selected, by=stage.ours, sql=True)
    producer = stage.producer()
    letters = colored(topic, 150)
    results = stage.send(producer, letters)
    stage.settle(topic, [(stage.ours, early)])
    late = stage.push(selected, sql=True)
    more = colored(topic, 60, 150)
    results += stage.send(producer, more)
    letters += more
    stage.settle(topic, [(stage.peer, late), (stage.ours, early)])
    kept = wanted_of(letters)
    assert 30 < len(kept) < 100
    expected = [letters[place] for place in kept]
    answers = [results[place] for place in kept]
    got = [one for one in stage.peer.messages(late) if one["properties"]["n"] != "-1"]
    check_flow(expected, answers, got, in_order=stage.keeps_order)
    got = [one for one in stage.ours.messages(early) if one["properties"]["n"] != "-1"]
    check_flow(expected, answers, got)


@pytest.mark.kind("SQL92")
@pytest.mark.needs("checked filter")
def test_a_filter_that_is_none_is_refused_at_once(stage: Stage) -> None:
    """Its consumer does not start, and says why.

    Go's client starts without asking anybody; its pulls are answered 27.
    """
    topic = stage.topic()
    with pytest.raises(DriverError) as refused:
        stage.push({topic: "amount > > 5"}, sql=True)
    if stage.client == OURS:
        assert "line 1 column 10" in str(refused.value)
    elif stage.client.startswith("java") and stage.server == OURS:
        assert "line 1 column 10: expected" in str(refused.value)


@pytest.mark.kind("SQL92")
def test_another_filter_of_the_same_group(stage: Stage) -> None:
    """A member that comes back with another filter gets by that, also of what lay there."""
    topic, group = stage.topic(), stage.unique("G")
    first = stage.push({topic: "color = 'red'" + END}, group=group, sql=True)
    producer = stage.producer()
    stage.send(producer, colored(topic, 30))
    stage.settle(topic, [(stage.peer, first)])
    stage.peer.call("closePush", name=first)
    letters = colored(topic, 60, 30)
    results = stage.send(producer, letters)
    second = stage.push({topic: WANTED + END}, group=group, sql=True)
    stage.settle(topic, [(stage.peer, second)])
    kept = wanted_of(letters)
    got = [one for one in stage.peer.messages(second) if int(one["properties"]["n"]) >= 30]
    expected = [letters[place] for place in kept]
    check_flow(expected, [results[place] for place in kept], got, in_order=False, repeated=True)
