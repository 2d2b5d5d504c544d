"""Two clusters with equal contents, RocketMQ's and ours, and RocketMQ's mqadmin on each.

Job: prepare topics, groups, messages and an online consumer; run lines of mqadmin; give their
answers names instead of addresses and ids, and leave out what the table of a command says.
Must not: know a command; those stand in `mqadmin.toml`.
"""

import base64
import re
import time
import tomllib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from interop.driver import Peer
from interop.peers import driver_command, mqadmin_command
from interop.servers import Cluster, JavaCluster, OurCluster

from cometmq.broker.base.config import ignored_keys
from cometmq.namesrv.config import IGNORED_KEYS
from cometmq.net.blocking import BlockingChannel
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["Admin", "Answer", "Step", "Table", "both_clusters", "load_table"]

TOPIC: Final = "AdmTopic"
ORDERED_TOPIC: Final = "AdmOrder"
GROUP: Final = "AdmGroup"
OUR_GROUP: Final = "AdmOurs"
PRODUCERS: Final = "AdmProducers"
CLIENT: Final = "adm"
QUEUE_COUNT: Final = 4
PREPARED_COUNT: Final = 8
_BODIES: Final = Path("/tmp/rocketmq/msgbodys")
"""Where mqadmin puts the bodies it shows; it knows no other place."""
_PATIENCE_S: Final = 120.0
_BRACES: Final = re.compile(r"\{([a-z]+(?::\d+)?)\}")


@dataclass(frozen=True)
class Step:
    """One line of mqadmin."""

    number: int
    command: str
    line: tuple[str, ...]
    is_soon: bool
    differs: str
    """Why ours answers otherwise; empty where it does not."""
    ours: str
    """What ours must say then."""

    @property
    def title(self) -> str:
        """How reports name it."""
        return f"{self.number:02} {' '.join((self.command, *self.line))}"


@dataclass(frozen=True)
class Table:
    """`mqadmin.toml`, checked."""

    fields: Mapping[str, re.Pattern[str]]
    cut: frozenset[str]
    ignored: Mapping[str, Mapping[str, str]]
    unordered: frozenset[str]
    steps: Sequence[Step]

    def commands(self) -> list[str]:
        """The commands that have a step, in their order."""
        return list(dict.fromkeys(step.command for step in self.steps))


def load_table(path: Path) -> Table:
    """Read the table.

    Raises:
        ValueError: a row names a field or a command that there is not.
    """
    raw = tomllib.loads(path.read_text("utf-8"))
    texts = raw["field"] | {
        "no_effect_broker": _lines_of(ignored_keys()),
        "no_effect_name_server": _lines_of(IGNORED_KEYS),
    }
    fields = {name: re.compile(text, re.MULTILINE) for name, text in texts.items()}
    steps = [
        Step(
            number,
            row["line"][0],
            tuple(row["line"][1:]),
            bool(row.get("soon", False)),
            row.get("differs", ""),
            row.get("ours", ""),
        )
        for number, row in enumerate(raw["step"])
    ]
    commands = {step.command for step in steps}
    for command, names in raw["ignore"].items():
        if command not in commands:
            raise ValueError(f"ignore.{command}: no step runs it")
        for name in names:
            if name not in fields:
                raise ValueError(f"ignore.{command}.{name}: there is no such field")
    cut, unordered = frozenset(raw["cut"]), frozenset(raw["unordered"])
    return Table(fields, cut, raw["ignore"], unordered, steps)


def _lines_of(keys: Iterable[str]) -> str:
    """A pattern of the lines of some configuration keys."""
    return rf"^({'|'.join(keys)}) .*\n"


@dataclass
class Answer:
    """The output of a line, with names instead of values that differ between any two clusters."""

    out: str
    err: str
    status: int

    def text(self) -> str:
        """Everything a person would see."""
        return f"{self.out}\n--- errors (status {self.status})\n{self.err}"


@dataclass
class Admin:
    """One cluster, and a process with mqadmin and an online consumer."""

    cluster: Cluster
    peer: Peer
    ours: Peer
    """With our own client in it, for a group of its own."""
    names: dict[str, str] = field(default_factory=dict)

    def prepare(self) -> None:
        """Make topics, a group, eight messages, and consume them."""
        self.names |= {"ns": self.cluster.name_server, "broker": self.cluster.broker}
        self._until("the broker's registration", lambda: "TBW102" in self.run("topicList").out)
        for topic in (TOPIC, ORDERED_TOPIC, f"%RETRY%{GROUP}"):
            count = str(1 if topic.startswith("%") else QUEUE_COUNT)
            self.run("updateTopic", "-b", "{broker}", "-t", topic, "-r", count, "-w", count)
            self._until(
                f"a route of {topic}",
                lambda topic=topic: "brokerDatas" in self.run("topicRoute", "-t", topic).out,
            )
        self.peer.call(
            "producer",
            name="P",
            group=PRODUCERS,
            instance="admp",
            nameServer=self.cluster.name_server,
        )
        for number in range(PREPARED_COUNT):
            self._send(number)
        self._consume(self.peer, name="C", group=GROUP, topics={TOPIC: "*"}, instance=CLIENT)
        topics = {TOPIC: "Tag0 || Tag1"}
        self.names["ours"] = self._consume(
            self.ours, name="O", group=OUR_GROUP, topics=topics, instance="ours"
        )
        listed = self.run("consumerConnection", "-g", GROUP).out
        found = re.search(r"^(\S+@adm) ", listed, re.MULTILINE)
        assert found is not None, listed
        self.names["client"] = found[1]

    def _consume(self, peer: Peer, *, name: str, group: str, **more: Any) -> str:
        """Let a consumer have everything and stay; its client's id.

        It stops once, and then commits, for which a client that stays takes ten seconds; of a
        retry topic without messages it would know no offset before its first long pull has ended.
        """
        given = {"name": name, "group": group, "nameServer": self.cluster.name_server, **more}
        peer.call("push", **given)
        peer.wait_messages(name, lambda got: len(got) >= PREPARED_COUNT)
        peer.call("closePush", name=name)
        channel = BlockingChannel(self.cluster.broker)
        try:
            ext = {"consumerGroup": group, "topic": f"%RETRY%{group}", "queueId": "0"}
            request = RemotingCommand.request(
                RequestCode.UPDATE_CONSUMER_OFFSET, {**ext, "commitOffset": "0"}
            )
            answer = channel.request(request, 10_000)
            assert answer.code == 0, answer.remark
        finally:
            channel.close()
        client = str(peer.call("push", **given))
        self._until("commits", lambda: self._is_all_committed(group))
        return client

    def _is_all_committed(self, group: str) -> bool:
        """Whether a group has read everything, and has an offset for its retry topic too."""
        shown = self.run("consumerProgress", "-g", group).out
        return f"%RETRY%{group} " in shown and "Consume Diff Total: 0" in shown

    def _send(self, number: int) -> None:
        message = {
            "topic": TOPIC,
            "body": base64.b64encode(f"body {number} äöü".encode()).decode(),
            "tags": f"Tag{number % 2}",
            "keys": f"key{number}",
            "properties": {"n": str(number)},
            "queue": {"topic": TOPIC, "broker": "broker-a", "id": number % QUEUE_COUNT},
        }
        (result,) = self.peer.call("send", name="P", mode="queue", messages=[message])
        self.names[f"id:{number}"] = result["offsetMsgId"]
        self.names[f"unique:{number}"] = result["msgId"]
        self.names[f"at:{number}"] = str(int(result["offsetMsgId"][-16:], 16))

    def _until(self, what: str, holds: Any) -> None:
        deadline = time.monotonic() + _PATIENCE_S
        while not holds():
            assert time.monotonic() < deadline, f"{self.cluster.kind}: waited in vain for {what}"

    def run(self, *line: str) -> Answer:
        """Run one line with the cluster's names in it, and put names into its answer."""
        return self.begin(*line)()

    def begin(self, *line: str) -> Callable[[], Answer]:
        """Start a line; the result waits for its answer."""
        pending = self.peer.begin("mqadmin", line=self._filled(line))

        def wait() -> Answer:
            raw = pending.result()
            return Answer(self._named(raw["out"]), self._named(raw["err"]), raw["status"])

        return wait

    def _filled(self, line: Sequence[str]) -> list[str]:
        filled = [_BRACES.sub(lambda found: self.names[found[1]], word) for word in line]
        if "-n" not in filled:
            filled += ["-n", self.cluster.name_server]
        return filled

    def remove_bodies(self) -> None:
        """Remove the files that mqadmin's queries leave behind, one for each message shown."""
        for value in self.names.values():
            (_BODIES / value).unlink(missing_ok=True)

    def _named(self, text: str) -> str:
        for name, value in self.names.items():
            if not name.startswith("at:"):
                text = text.replace(value, "{" + name + "}")
        return text


def normalised(table: Table, step: Step, answer: Answer) -> str:
    """An answer without the fields its command's table leaves out."""
    text = answer.text()
    for name in table.ignored.get(step.command, {}):
        text = table.fields[name].sub("" if name in table.cut else f"<{name}>", text)
    lines = [re.sub(r"\s+$", "", re.sub(r" {2,}", "  ", line)) for line in text.splitlines()]
    return "\n".join(sorted(lines) if step.command in table.unordered else lines)


@contextmanager
def both_clusters(folder: Path) -> Iterator[tuple[Admin, Admin]]:
    """RocketMQ's and ours, prepared.

    Raises:
        Unavailable: a peer is not to be had on this machine.
    """
    command = mqadmin_command(folder / "home")
    our_command = driver_command("cometmq", folder / "our-home")
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:

        def start(cluster: Cluster) -> Admin:
            stack.enter_context(cluster)
            name = f"admin-{cluster.kind}"
            admin = Admin(
                cluster,
                stack.enter_context(Peer(name, command, folder / name)),
                stack.enter_context(Peer(f"ours-{name}", our_command, folder / f"ours-{name}")),
            )
            admin.prepare()
            return admin

        # Without its wheel of timers RocketMQ's broker fails to delete a topic.
        timers = {"timerWheelEnable": "true"}
        clusters = (JavaCluster(folder / "java", settings=timers), OurCluster(folder / "ours"))
        theirs, ours = pool.map(start, clusters)
        try:
            yield theirs, ours
        finally:
            theirs.remove_bodies()
            ours.remove_bodies()
