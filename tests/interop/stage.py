"""What every interop scenario needs: a client under test, servers, our own client beside it.

Job: pairs of client and servers, unique names, and the comparison of what was sent with what came.
Must not: contain a scenario.
"""

import base64
import itertools
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
from interop.driver import Message, Peer, mark
from interop.peers import GO, JAVA_CLIENTS, JAVA_SERVER, driver_command
from interop.servers import Cluster, JavaCluster, OurCluster
from tests.interop import kinds

import cometmq.sync
from cometmq import MessageQueue
from cometmq.errors import NoRoute

__all__ = [
    "FEATURES",
    "NEWEST",
    "OURS",
    "PAIRS",
    "SHORT_PAIRS",
    "Stage",
    "bodies_of",
    "check_flow",
    "features_of",
    "letter",
    "met",
    "pairs",
    "pairs_of",
    "raised",
    "servers_for_kinds",
]

Letter = dict[str, Any]
OURS: Final = "cometmq"

_EVERYONE: Final = frozenset({"async", "batch", "delay", "ordered", "push", "retry"})
FEATURES: Final = {
    "java": _EVERYONE
    | {"assigned", "checked filter", "lite", "namespace", "old", "pushes", "query", "request"}
    | {"empty body", "recall", "vip"},
    "go": _EVERYONE | {"empty body", "namespace", "old", "request", "vip"},
    OURS: _EVERYONE
    | {"empty body"}
    | {"assigned", "checked filter", "lite", "namespace", "pushes", "query", "recall", "request"},
}
"""What a client can be asked for; a scenario is collected only for clients that have it all."""

NEWEST: Final = f"java-{JAVA_CLIENTS[0]}"
PAIRS: Final = (
    (NEWEST, OURS),
    (f"{NEWEST}-binary", OURS),
    *((f"java-{version}", OURS) for version in JAVA_CLIENTS[1:]),
    (f"go-{GO}", OURS),
    (OURS, f"java-{JAVA_SERVER}"),
)
"""Client and servers of the long lane.

`INTEROP_PAIRS=java-5.4.0@java-5.4.0` asks RocketMQ itself about a scenario.
"""

SHORT_PAIRS: Final = ((NEWEST, OURS), (f"go-{GO}", OURS), (OURS, f"java-{JAVA_SERVER}"))
"""Those of a plain pytest run."""


def pairs(*, full: bool) -> list[tuple[str, str]]:
    """The pairs of this run."""
    asked = os.environ.get("INTEROP_PAIRS")
    if not asked:
        return list(PAIRS if full else SHORT_PAIRS)
    return [(pair.split("@")[0], pair.split("@")[1]) for pair in asked.split(",")]


def pairs_of(marks: Iterable[pytest.Mark], *, full: bool) -> list[tuple[str, str]]:
    """Return the pairs with which a test runs, by its marks.

    The mark ``needs(*features)`` leaves out clients without a feature, and ``at(server)`` leaves
    out the other servers.  The mark ``kind(name)`` adds foreign clients at RocketMQ's broker in the
    long lane; its ``short`` names the clients of a plain run.
    """
    marks = list(marks)
    fitting = pairs(full=full)
    if (
        full
        and "INTEROP_PAIRS" not in os.environ
        and any(marker.name == "kind" for marker in marks)
    ):
        fitting += kinds.FOREIGN_PAIRS
    for marker in marks:
        if marker.name == "needs":
            fitting = [pair for pair in fitting if set(marker.args) <= features_of(pair[0])]
        elif marker.name == "at":
            fitting = [pair for pair in fitting if pair[1] in marker.args]
        elif marker.name == "kind" and "short" in marker.kwargs and not full:
            fitting = [pair for pair in fitting if pair[0] in marker.kwargs["short"]]
    return fitting


def features_of(client: str) -> frozenset[str]:
    """What a client can be asked for."""
    features = frozenset(FEATURES[client.split("-", maxsplit=1)[0]])
    if client.startswith("java-4."):
        # ProcessQueue.putMessage of 4.9 takes the length of a body that is null, and the queue's
        # pulls end with that exception; a broker can do nothing about it.
        features -= {"recall", "empty body"}
    # A held pull must run out first, and Java's client 4.9 takes 25 s more: once is enough.
    return features | {"newest", "reset"} if client in (OURS, NEWEST) else features


def letter(topic: str, body: bytes, number: int, **more: Any) -> Letter:
    """A message to send, with its number as a property `n`."""
    properties = {"n": str(number), **more.pop("properties", {})}
    return {
        "topic": topic,
        "body": base64.b64encode(body).decode(),
        "properties": properties,
        **more,
    }


def bodies_of(received: Iterable[Message]) -> list[bytes]:
    """Bodies of received messages that are short enough to be shown."""
    return [base64.b64decode(message["body"]) for message in received]


_numbers = itertools.count(1)


@dataclass
class Stage:
    """A client under test, the servers it meets, and our own client on the same servers."""

    client: str
    server: str
    peer: Peer
    ours: Peer
    cluster: Cluster
    admin: cometmq.sync.Admin

    @property
    def keeps_order(self) -> bool:
        """Whether one consuming thread sees a queue's messages in their order (Go's does not)."""
        return not self.client.startswith("go")

    def unique(self, word: str) -> str:
        """A name no other scenario has."""
        return f"{word}_{next(_numbers)}"

    def topic(self, word: str = "Topic", queues: int = 4) -> str:
        """Create a topic and wait until its route is known."""
        name = self.unique(word)
        self.admin.create_topic(name, queue_count=queues)
        self.wait_route(name)
        return name

    def wait_route(self, topic: str, timeout_s: float = 20.0) -> None:
        """Wait until the name server knows a topic; RocketMQ's broker tells it a bit later."""
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                self.admin.topic_route(topic)
                return
            except NoRoute:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.02)

    def queues(self, topic: str, count: int = 4) -> list[dict[str, Any]]:
        """All queues of a topic, as commands spell them."""
        return [
            {"topic": topic, "broker": self.cluster.broker_name, "id": number}
            for number in range(count)
        ]

    def message_queue(self, topic: str, queue_id: int = 0) -> MessageQueue:
        """A queue of a topic, as our admin client wants it."""
        return MessageQueue(topic, self.cluster.broker_name, queue_id)

    def producer(self, by: Peer | None = None, **more: Any) -> str:
        """Start a producer of the client under test, or of `by`."""
        return self._start("producer", "P", by, more)

    def push(self, topics: dict[str, str], by: Peer | None = None, **more: Any) -> str:
        """Start a push consumer that begins at the first message."""
        return self._start("push", "C", by, {"topics": topics, **more})

    def ordered(self, topics: dict[str, str], by: Peer | None = None, **more: Any) -> str:
        """Start an ordered push consumer that begins at the first message."""
        return self._start("ordered", "O", by, {"topics": topics, **more})

    def lite(self, **more: Any) -> str:
        """Start a lite pull consumer."""
        return self._start("lite", "L", None, more)

    def old(self, **more: Any) -> str:
        """Start an old pull consumer."""
        return self._start("old", "O", None, more)

    def _start(self, kind: str, word: str, by: Peer | None, more: dict[str, Any]) -> str:
        name = self.unique(word)
        arguments = {
            "name": name,
            "group": f"G_{name}",
            "instance": name,
            "nameServer": self.cluster.name_server,
            **more,
        }
        (by or self.peer).call(kind, **arguments)
        return name

    def send(
        self, producer: str, letters: Sequence[Letter], mode: str = "sync", by: Peer | None = None
    ) -> list[dict[str, Any]]:
        """Send and return the results; each must be fine."""
        results = (by or self.peer).call("send", name=producer, mode=mode, messages=list(letters))
        faults = [result for result in results if result.get("status") not in ("SEND_OK", "ONEWAY")]
        assert not faults, faults[:3]
        return list(results)

    def retry_topic(self, group: str) -> None:
        """Make a group's retry topic beforehand.

        A Java consumer of a new group finds its retry topic with its next regular rebalance, up to
        20 s later; an old group's it has at once.
        """
        self.admin.create_topic(f"%RETRY%{group}", queue_count=1)
        self.wait_route(f"%RETRY%{group}")

    def wait_shared(
        self,
        topic: str,
        members: Sequence[tuple[Peer, str]],
        queues: int = 8,
        timeout_s: float = 30.0,
    ) -> None:
        """Send probes (`n` is -2) until two members have half of the queues each."""
        sender = self.producer(by=self.ours)
        deadline = time.monotonic() + timeout_s
        probes = [letter(topic, b"probe", -2, queue=queue) for queue in self.queues(topic, queues)]
        while True:
            before = [len(peer.messages(name)) for peer, name in members]
            self.send(sender, probes, "queue", by=self.ours)
            while True:
                after = [len(peer.messages(name)) for peer, name in members]
                got = [late - early for late, early in zip(after, before, strict=True)]
                if sum(got) >= queues or time.monotonic() > deadline:
                    break
                time.sleep(0.01)
            if got == [queues // 2] * 2:
                break
            assert time.monotonic() < deadline, f"{topic} was never shared: {got} of {queues}"
        self.ours.call("closeProducer", name=sender)

    def settle(
        self,
        topic: str,
        receivers: Sequence[tuple[Peer, str]],
        *,
        queues: int = 4,
        tag: str | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """Send an end mark to each queue and wait for it: what came before it has come."""
        end = self.unique("end")
        sender = self.producer(by=self.ours)
        more = {} if tag is None else {"tags": tag}
        marks = [
            letter(topic, end.encode(), -1, queue=queue, **more)
            for queue in self.queues(topic, queues)
        ]
        self.send(sender, marks, "queue", by=self.ours)
        self.ours.call("closeProducer", name=sender)
        body = mark(end.encode())
        for peer, name in receivers:
            peer.wait_messages(
                name, lambda got: sum(m["body"] == body for m in got) >= queues, timeout_s=timeout_s
            )


@contextmanager
def raised(
    client: str, server: str, folder: Path, settings: Mapping[str, str] | None = None
) -> Iterator[Stage]:
    """Servers of their own for one client, with broker settings of their own.

    Raises:
        Unavailable: the client or the servers are not to be had on this machine.
    """
    driver_command(client, folder / "home")
    kind = OurCluster if server == OURS else JavaCluster
    cluster: Cluster = kind(folder / "servers", settings=settings)
    with cluster, met(client, server, cluster, folder) as stage:
        yield stage


@contextmanager
def met(client: str, server: str, cluster: Cluster, folder: Path) -> Iterator[Stage]:
    """A client and ours at servers that run.

    Raises:
        Unavailable: the client is not to be had on this machine.
    """
    command = driver_command(client, folder / "home")
    ours = driver_command(OURS, folder / "our-home")
    with (
        Peer(client, command, folder / "client") as peer,
        Peer(OURS, ours, folder / "ours") as beside,
        # A new topic is answered when it is on disk, and tests beside this one may fill the disk.
        cometmq.sync.Admin(name_server=cluster.name_server, timeout_ms=30_000) as admin,
    ):
        stage = Stage(client, server, peer, beside, cluster, admin)
        # RocketMQ's broker says it is up before it has registered.
        stage.wait_route("TBW102", 60.0)
        yield stage


def servers_for_kinds(server: str, folder: Path, *, full: bool) -> Cluster:
    """Servers, not started, with the settings of tests marked ``kind``.

    Args:
        full: for the long lane, which alone has exact times; a Java broker with them takes longer
            to start.

    Raises:
        Unavailable: they are not to be had on this machine.
    """
    if server == OURS:
        return OurCluster(folder, settings=kinds.SETTINGS | kinds.OUR_SETTINGS)
    settings = kinds.SETTINGS | {"timerWheelEnable": str(full).lower()}
    return JavaCluster(folder, settings=settings, options=kinds.JAVA_OPTIONS)


def check_flow(
    letters: Sequence[Letter],
    results: Sequence[dict[str, Any]] | None,
    received: Iterable[Message],
    *,
    in_order: bool = True,
    repeated: bool = False,
) -> None:
    """What came is what was sent: nothing lost, doubled, reordered in its queue or changed.

    Args:
        results: answers of single sends, in the order of `letters`; None when there are none.
        repeated: messages may come more than once (a consumer left while it worked).

    Probes and end marks have negative numbers and are passed over.
    """
    got = [message for message in received if int(message["properties"]["n"]) >= 0]
    by_number: dict[int, Message] = {}
    counts: dict[int, int] = {}
    last: dict[tuple[str, int], int] = {}
    for message in got:
        number = int(message["properties"]["n"])
        by_number[number] = message
        counts[number] = counts.get(number, 0) + 1
        queue = (message["topic"], message["queueId"])
        if in_order and not repeated:
            assert message["queueOffset"] > last.get(queue, -1), f"reordered in {queue}"
            last[queue] = message["queueOffset"]
    sent = {int(one["properties"]["n"]): one for one in letters}
    assert sorted(set(sent) - set(by_number)) == [], "lost"
    assert sorted(set(by_number) - set(sent)) == [], "never sent"
    if not repeated:
        assert {number: count for number, count in counts.items() if count != 1} == {}, "doubled"
    for position, (number, one) in enumerate(sent.items()):
        _check_message(one, by_number[number])
        if results is not None:
            _check_result(results[position], by_number[number])


def _check_message(sent: Letter, message: Message) -> None:
    assert message["body"] == mark(base64.b64decode(sent["body"]))
    assert message["topic"] == sent["topic"]
    assert message["tags"] == sent.get("tags")
    assert message["keys"] == sent.get("keys")
    assert message["flag"] == sent.get("flag", 0)
    kept = {name: message["properties"].get(name) for name in sent["properties"]}
    assert kept == sent["properties"]
    assert message["reconsumeTimes"] == 0
    assert message["bornHost"] == "127.0.0.1"
    assert 0 < message["bornTime"] <= message["storeTime"] + 1


def _check_result(result: dict[str, Any], message: Message) -> None:
    assert result["msgId"] == message["msgId"]
    assert result["offsetMsgId"] == message["offsetMsgId"]
    assert result["queue"]["id"] == message["queueId"]
    if message["broker"] is not None:  # Java's client does not say it of a message it looked up
        assert result["queue"]["broker"] == message["broker"]
    assert result["queueOffset"] == message["queueOffset"]
