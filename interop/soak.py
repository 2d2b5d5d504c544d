"""A mixed soak: Java's, Go's and our clients join and leave our servers and are killed.

Job: keep producers and consumers of every kind in traffic, disturb them, and report at the end
whether every group consumed every acknowledged message and nothing else.
Must not: decide what is a fault (`ledger`), or know how a client is built (`peers`).

    python -m interop.soak --seconds 600 --seed 7 --broker-restarts 2

Three groups belong to one kind of client each, a fourth is shared by all.  A *member* is one
process with a consumer in the shared group and one in its own; so a kill hits two groups.
"""

import argparse
import contextlib
import itertools
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import cometmq.sync
from cometmq.errors import NoRoute
from interop.driver import DriverDied, DriverError, Message, Peer
from interop.ledger import Ledger, letter_of
from interop.peers import GO, JAVA_CLIENTS, driver_command
from interop.servers import OurCluster

__all__ = ["Report", "Soak", "main"]

KINDS: Final = {"java": f"java-{JAVA_CLIENTS[0]}", "go": f"go-{GO}", "ours": "cometmq"}
TOPIC: Final = "Soak"
QUEUES: Final = 8
SHARED: Final = "G_soak_shared"
MEMBERS_MAX: Final = 2
"""Processes of one kind that consume at a time."""
CHUNK: Final = 20
STARTS_MAX: Final = 5
START_TIMEOUT_S: Final = 120.0
FRESH_S: Final = 1.0
"""A process that acknowledged or received something within this time is in traffic."""
RETURN_S: Final = 30.0
"""After a restart, clients come back at their next heartbeat at the latest."""
DRAIN_TIMEOUT_S: Final = 180.0
MEMORY_SAMPLES_MIN: Final = 240
"""One a second."""
QUIET_S: Final = 3.0
"""After everything has come, how long to look whether more comes."""


class SoakPeer(Peer):
    """A driver whose events go into the ledger."""

    def __init__(self, name: str, kind: str, ledger: Ledger, folder: Path) -> None:
        self.kind = kind
        self._ledger = ledger
        self._waiting: list[str] = []
        super().__init__(name, driver_command(KINDS[kind], folder / "home"), folder)

    def expect(self, numbers: list[str]) -> None:
        """Expect the answers to these messages next, in this order."""
        self._waiting += numbers

    def on_message(self, name: str, message: Message) -> None:
        """See `Peer`."""
        self._ledger.note_delivery(self.name, name.split("@", maxsplit=1)[0], message)

    def on_sent(self, name: str, result: dict[str, Any]) -> None:
        """See `Peer`."""
        self._ledger.note_result(self.name, self._waiting.pop(0), result)


@dataclass
class Report:
    """The result of a soak; `faults` is empty if there were none."""

    seconds: float = 0.0
    seed: int = 0
    sent: int = 0
    acknowledged: int = 0
    send_faults: int = 0
    delivered: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, dict[str, int]] = field(default_factory=dict)
    events: dict[str, int] = field(default_factory=dict)
    kills: int = 0
    kills_in_traffic: int = 0
    rss_mib: dict[str, float] = field(default_factory=dict)
    faults: list[str] = field(default_factory=list)

    def text(self) -> str:
        """The report as text."""
        lines = [
            f"{self.seconds:.0f} s, seed {self.seed}: {self.sent} sent, {self.acknowledged} "
            f"acknowledged, {self.send_faults} sends failed",
            f"kills: {self.kills}, of processes in traffic: {self.kills_in_traffic}; events: "
            + ", ".join(f"{name} {count}" for name, count in sorted(self.events.items())),
        ]
        for group, count in self.delivered.items():
            twice = ", ".join(f"{n} by {why}" for why, n in self.duplicates[group].items())
            lines.append(
                f"{group}: {count} messages, deliveries beyond the first: {twice or 'none'}"
            )
        memory = ", ".join(f"{name} {value:.1f}" for name, value in self.rss_mib.items())
        lines.append(f"broker memory (MiB, anonymous): {memory or 'not sampled'}")
        lines += [f"FAULT: {fault}" for fault in self.faults] or ["no fault"]
        return "\n".join(lines)


class Soak:
    """One run."""

    def __init__(self, folder: Path, *, seconds: float, seed: int, rate: int) -> None:
        self._folder = folder
        self._seconds = seconds
        self._rate = rate
        self._chance = random.Random(seed)
        self._own = {kind: f"G_soak_{kind}" for kind in KINDS}
        self._numbers = itertools.count(1)
        self._is_over = threading.Event()
        self._memory: list[tuple[float, float]] = []
        self._threads: list[threading.Thread] = []
        self._events: Counter[str] = Counter()
        self._killed: set[str] = set()
        self._deaths: list[str] = []
        self.ledger = Ledger([SHARED, *self._own.values()])
        self.members: dict[str, list[SoakPeer]] = {kind: [] for kind in KINDS}
        self.producers: dict[str, SoakPeer] = {}
        self.report = Report(seed=seed)
        self.cluster = OurCluster(folder / "servers")

    # -- processes --------------------------------------------------------------------------

    def _peer(self, kind: str, role: str) -> SoakPeer:
        name = f"{role}-{kind}-{next(self._numbers)}"
        return SoakPeer(name, kind, self.ledger, self._folder / name)

    def _note(self, text: str) -> None:
        """Print what happens."""
        sys.stderr.write(f"{time.strftime('%H:%M:%S')} {text}\n")

    def _groups_of(self, kind: str) -> list[str]:
        return [SHARED, self._own[kind]]

    def join(self, kind: str) -> None:
        """Start a process that consumes in the shared group and in the group of its kind."""
        for _ in range(STARTS_MAX):
            peer = self._peer(kind, "member")
            began = time.monotonic()
            try:
                self._consume_in(peer, kind)
            except (DriverDied, DriverError) as error:
                # On a busy machine a client may give up after 3 s: try again, as an operator would.
                self._events["starts repeated"] += 1
                self._note(f"{peer.name}: {error}")
                self.members[kind].remove(peer)
                peer.close()
                self.ledger.note_disturbance(self._groups_of(kind), "killed", began)
            else:
                self.ledger.note_disturbance(self._groups_of(kind), "joined", began)
                self._events["joined"] += 1
                return
        raise RuntimeError(f"no {kind} consumer starts; see the log in {self._folder}")

    def _consume_in(self, peer: SoakPeer, kind: str) -> None:
        self.members[kind].append(peer)
        for group in self._groups_of(kind):
            peer.call(
                "push",
                name=f"{group}@{peer.name}",
                group=group,
                instance=f"{group}-{peer.name}",
                nameServer=self.cluster.name_server,
                topics={TOPIC: "*"},
                timeout_s=START_TIMEOUT_S,
            )

    def leave(self, peer: SoakPeer) -> None:
        """Stop a member in order."""
        self.members[peer.kind].remove(peer)
        groups = self._groups_of(peer.kind)
        began = time.monotonic()
        for group in groups:
            with contextlib.suppress(DriverError):  # the member ended before its answer
                peer.call("closePush", name=f"{group}@{peer.name}", timeout_s=90.0)
        self.ledger.note_disturbance(groups, "left", began)
        # Its last events are still read.
        peer.close()
        self._events["left"] += 1

    def kill(self, peer: SoakPeer) -> None:
        """Kill a member (`kill -9`) during its work."""
        self._wait_busy(peer)
        self._killed.add(peer.name)
        is_busy = self.ledger.silence_of(peer.name) <= FRESH_S
        self.report.kills += 1
        self.report.kills_in_traffic += is_busy
        if peer in self.members[peer.kind]:
            self.members[peer.kind].remove(peer)
            began = time.monotonic()
            peer.close()
            self.ledger.note_disturbance(self._groups_of(peer.kind), "killed", began)
            self._events["consumers killed"] += 1
        else:
            peer.close()
            self._events["producers killed"] += 1
        self._note(f"{peer.name} was killed")

    def _wait_busy(self, peer: SoakPeer) -> None:
        """Wait until a process has traffic, so that the kill interrupts it."""
        deadline = time.monotonic() + 30.0
        while self.ledger.silence_of(peer.name) > FRESH_S / 4 and time.monotonic() < deadline:
            time.sleep(0.005)

    def _restart_broker(self, number: signal.Signals) -> None:
        began = time.monotonic()
        self.cluster.stop_broker(number)
        self.cluster.start_broker()
        self._memory.clear()  # of another process
        self.ledger.note_disturbance(list(self.ledger.groups), "broker", began, RETURN_S)
        self._events["broker killed" if number == signal.SIGKILL else "broker restarted"] += 1

    # -- traffic ----------------------------------------------------------------------------

    def _produce(self, kind: str) -> None:
        """Keep a producer of one kind sending; start another one when it was killed."""
        while not self._is_over.is_set():
            peer = self._peer(kind, "producer")
            try:
                peer.call(
                    "producer",
                    name="p",
                    group=f"P_{peer.name}",
                    instance=peer.name,
                    nameServer=self.cluster.name_server,
                )
                self.producers[kind] = peer
                self._send_on(peer)
                peer.call("closeProducer", name="p")
            except DriverError as error:
                self._events["starts repeated"] += 1
                self._note(f"{peer.name}: {error}")
            except DriverDied:
                if peer.name not in self._killed:
                    self._deaths.append(f"{peer.name} died by itself")
            finally:
                peer.close()

    def _send_on(self, peer: SoakPeer) -> None:
        pause_s = CHUNK / self._rate
        for count in itertools.count():
            if self._is_over.is_set():
                return
            started = time.monotonic()
            numbers = [f"{peer.name}.{count}.{place}" for place in range(CHUNK)]
            letters = [letter_of(TOPIC, number) for number in numbers]
            self.ledger.note_sent(numbers)
            mode = ("sync", "sync", "sync", "async", "batch")[count % 5]
            if mode == "sync":
                peer.expect(numbers)
                peer.call(
                    "send", name="p", mode=mode, messages=letters, progress=True, timeout_s=120.0
                )
            else:
                self._send_at_once(peer, mode, numbers, letters)
            time.sleep(max(0.0, pause_s - (time.monotonic() - started)))

    def _send_at_once(
        self, peer: SoakPeer, mode: str, numbers: list[str], letters: list[dict[str, Any]]
    ) -> None:
        try:
            results = peer.call("send", name="p", mode=mode, messages=letters, timeout_s=120.0)
        except DriverError as error:
            results = [{"error": error.described}] * len(numbers)
        if len(results) == 1:  # Java and Go give one result for a batch
            results *= len(numbers)
        for number, result in zip(numbers, results, strict=True):
            self.ledger.note_result(peer.name, number, result)

    def _sample_memory(self) -> None:
        while not self._is_over.wait(1.0):
            try:
                text = Path(f"/proc/{self.cluster.broker_process_id}/status").read_text("ascii")
            except (OSError, AssertionError):
                continue  # it is being restarted, or this is no Linux
            fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
            if "RssAnon" in fields:
                self._memory.append((time.monotonic(), int(fields["RssAnon"].split()[0]) / 1024))

    # -- the run ----------------------------------------------------------------------------

    def run(self, broker_restarts: int) -> Report:
        """Run the whole soak and return its report."""
        started = time.monotonic()
        self._note(f"soak of {self._seconds:.0f} s, seed {self.report.seed}")
        with self.cluster:
            try:
                self._create_topic()
                for kind in KINDS:
                    self.join(kind)
                for kind in KINDS:
                    self._spawn(self._produce, kind)
                self._spawn(self._sample_memory)
                while len(self.producers) < len(KINDS):
                    time.sleep(0.05)
                begun = time.monotonic()
                self._disturb(begun, broker_restarts)
                self._finish()
            finally:
                self._is_over.set()
                for thread in self._threads:
                    thread.join()
                for peers in self.members.values():
                    for peer in peers:
                        peer.close()
        self._tell(time.monotonic() - started)
        return self.report

    def _create_topic(self) -> None:
        with cometmq.sync.Admin(name_server=self.cluster.name_server) as admin:
            admin.create_topic(TOPIC, queue_count=QUEUES)
            for group in self.ledger.groups:
                admin.create_topic(f"%RETRY%{group}", queue_count=1)
            deadline = time.monotonic() + 20.0
            while True:
                try:
                    admin.topic_route(TOPIC)
                    return
                except NoRoute:
                    if time.monotonic() > deadline:
                        raise
                    time.sleep(0.02)

    def _spawn(self, work: Any, *arguments: Any) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _disturb(self, begun: float, broker_restarts: int) -> None:
        """Kill, join and leave in turn until the time is over; restart the broker early."""
        # Restarts come in the first third, so that memory is observed without them afterwards.
        restarts = [
            begun + self._seconds / 3 * (place + 1) / (broker_restarts + 1)
            for place in range(broker_restarts)
        ]
        pause_s = min(6.0, self._seconds / 12)
        turns = itertools.cycle(KINDS)
        while time.monotonic() - begun < self._seconds:
            if restarts and time.monotonic() >= restarts[0]:
                restarts.pop(0)
                # The last restart is a kill.
                self._restart_broker(signal.SIGTERM if restarts else signal.SIGKILL)
            kind = next(turns)
            here = self.members[kind]
            action = self._chance.choice(("kill", "kill", "producer", "join", "leave"))
            producer = self.producers[kind]
            if action == "producer" and producer.name not in self._killed:
                self.kill(producer)
            elif action == "join" and len(here) < MEMBERS_MAX:
                self.join(kind)
            elif action == "leave" and len(here) > 1:
                self.leave(here[0])
            else:
                self.kill(self._chance.choice(here))
                if not here or self._chance.random() < 0.7:
                    self.join(kind)
            time.sleep(pause_s * self._chance.uniform(0.5, 1.5))

    def _finish(self) -> None:
        """Stop sending; wait until every owed message has come, and a little longer."""
        self._is_over.set()
        for thread in self._threads:
            thread.join()
        deadline = time.monotonic() + DRAIN_TIMEOUT_S
        while any(self.ledger.owed().values()) and time.monotonic() < deadline:
            time.sleep(0.1)
        time.sleep(QUIET_S)

    def _tell(self, seconds: float) -> None:
        report, ledger = self.report, self.ledger
        report.seconds = seconds
        report.sent = len(ledger.sent)
        report.acknowledged = len(ledger.acknowledged)
        report.send_faults = len(ledger.failed)
        report.delivered = {name: len(book.first) for name, book in ledger.groups.items()}
        report.duplicates = {name: dict(found) for name, found in ledger.duplicates().items()}
        report.events = dict(self._events)
        report.faults = ledger.faults() + self._deaths
        if report.kills != report.kills_in_traffic:
            report.faults.append(
                f"{report.kills - report.kills_in_traffic} of {report.kills} kills hit a process "
                "that was idle"
            )
        self._tell_memory()

    def _tell_memory(self) -> None:
        """Compare the second fifth of the time since the last restart with the last fifth."""
        values = [value for _, value in self._memory]
        fifth = len(values) // 5
        if not fifth:
            return
        early = statistics.median(values[fifth : 2 * fifth])
        late = statistics.median(values[-fifth:])
        self.report.rss_mib = {
            "at first": values[0],
            "in the second fifth": early,
            "in the last fifth": late,
            "highest": max(values),
        }
        # A short run shows how full the caches are, not whether memory leaks.
        if len(values) >= MEMORY_SAMPLES_MIN and late > early * 1.1 + 4:
            self.report.faults.append(f"broker memory grew from {early:.1f} to {late:.1f} MiB")


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(prog="interop.soak", description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--seed", type=int, default=random.SystemRandom().randrange(10**6))
    parser.add_argument("--rate", type=int, default=100, help="messages per second and producer")
    parser.add_argument("--broker-restarts", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print the report as JSON too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="cometmq-soak-") as folder:
        soak = Soak(Path(folder), seconds=given.seconds, seed=given.seed, rate=given.rate)
        report = soak.run(given.broker_restarts)
    sys.stdout.write(report.text() + "\n")
    if given.json:
        sys.stdout.write(json.dumps(report.__dict__) + "\n")
    return 1 if report.faults else 0


if __name__ == "__main__":
    sys.exit(main())
