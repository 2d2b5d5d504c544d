"""A replica set of real processes, each in a network namespace of its own: `make replicas`.

Three brokers, a controller and a name server have addresses on one bridge, on which the test is
too.  Links can be cut for one pair of machines, and slowed down; processes are killed and stopped.
A producer sends all the time, and a ledger has what was acknowledged.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import cometmq
from cometmq import Message
from cometmq.client.admin.controllers import ControllerAdmin
from cometmq.codec.ids import decode_offset_message_id
from cometmq.errors import CometError
from cometmq.wire.body.controller import SetReplicas

__all__ = ["Machine", "Rig", "missing", "rig"]

SET: Final = "broker-a"
TOPIC: Final = "T"
START_S: Final = 60.0
WAIT_S: Final = 60.0
_NUMBERS: Final = itertools.count(1)


def missing() -> str:
    """What keeps namespaces from being made; empty where they can be."""
    try:
        made = subprocess.run(
            ["ip", "netns", "add", f"cmq-probe-{os.getpid()}"],
            capture_output=True,
            text=True,
            check=False,
        )
    except FileNotFoundError:
        return "ip is not installed: apt-get install iproute2"
    if made.returncode:
        return f"network namespaces are not permitted: {made.stderr.strip()}"
    ip("netns", "del", f"cmq-probe-{os.getpid()}")
    return ""


def ip(*line: str) -> None:
    """Run ``ip``."""
    subprocess.run(["ip", *line], check=True, capture_output=True)


class Machine:
    """One process in a network namespace of its own.

    Args:
        bridge: the device that connects the machines.
        address: of this machine.
        command: what runs on it.
        environment: what its process gets beside the test's.
    """

    def __init__(
        self,
        name: str,
        bridge: str,
        address: str,
        folder: Path,
        command: list[str],
        environment: dict[str, str] | None = None,
    ) -> None:
        self.space, self.link = f"{bridge}-{name}", f"{bridge}{name}"
        self.address = address
        self._command = command
        self._environment = {**os.environ, **(environment or {})}
        self._log = folder / f"{name}.log"
        self._process: subprocess.Popen[bytes] | None = None
        ip("netns", "add", self.space)
        ip("link", "add", self.link, "type", "veth", "peer", "name", "eth0", "netns", self.space)
        ip("link", "set", self.link, "master", bridge, "up")
        for line in (
            ("addr", "add", f"{address}/24", "dev", "eth0"),
            ("link", "set", "eth0", "up"),
            ("link", "set", "lo", "up"),
        ):
            self._ip(*line)

    def _ip(self, *line: str) -> None:
        ip("-n", self.space, *line)

    def start(self) -> None:
        """Start the process, and wait until it serves."""
        with self._log.open("ab") as log:
            begin = log.tell()
            self._process = process = subprocess.Popen(
                ["ip", "netns", "exec", self.space, *self._command],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                # `ip netns exec` becomes the command, so signals reach it.
                start_new_session=True,
            )
        deadline = time.monotonic() + START_S
        while b"ready in" not in self._log.read_bytes()[begin:]:
            text = self._log.read_text("utf-8", "replace")[-2000:]
            assert process.poll() is None, text
            assert time.monotonic() < deadline, text
            time.sleep(0.02)

    @property
    def is_running(self) -> bool:
        """Whether the process runs, or stands still."""
        return self._process is not None

    def send_signal(self, number: int) -> None:
        """Send the process a signal."""
        assert self._process is not None
        self._process.send_signal(number)

    def end(self, number: int = signal.SIGKILL) -> None:
        """End the process by a signal."""
        process, self._process = self._process, None
        if process is not None:
            process.send_signal(number)
            if number != signal.SIGKILL:
                process.wait(30)
            process.kill()
            process.wait()

    def cut(self, other: Machine) -> None:
        """Drop everything between two machines, silently."""
        self._ip("route", "add", "blackhole", other.address)
        other._ip("route", "add", "blackhole", self.address)

    def mend(self, other: Machine) -> None:
        """End `cut`."""
        self._ip("route", "del", "blackhole", other.address)
        other._ip("route", "del", "blackhole", self.address)

    def unplug(self, *, is_out: bool = True) -> None:
        """Cut the machine off from all others, or connect it again."""
        ip("link", "set", self.link, "down" if is_out else "up")

    def slow(self, rate: str) -> str:
        """Limit what the machine gets, for example to ``8mbit``; empty for no limit.

        Returns why the system cannot do it; empty where it has.
        """
        verb = ["replace" if rate else "del", "dev", self.link, "root"]
        limit = ["tbf", "rate", rate, "burst", "16kb", "latency", "1s"] if rate else []
        done = subprocess.run(
            ["tc", "qdisc", *verb, *limit], check=False, capture_output=True, text=True
        )
        return done.stderr if done.returncode else ""

    def remove(self) -> None:
        """End the process, and remove the namespace."""
        self.end()
        ip("netns", "del", self.space)


@dataclass
class Rig:
    """The machines, and the ledger."""

    names: Machine
    controller: Machine
    brokers: list[Machine]
    folder: Path
    add: Callable[[str, int, list[str]], Machine]
    """Makes and starts a machine with a name, the last number of its address, and its command."""
    acknowledged: set[bytes] = field(default_factory=set)
    ends: dict[bytes, int] = field(default_factory=dict)
    """By body: where in the log an acknowledged message begins."""
    answered: list[tuple[float, float]] = field(default_factory=list)
    """When each acknowledged send began and ended."""
    faults: list[str] = field(default_factory=list)

    @property
    def name_server(self) -> str:
        """`host:port` of the name server."""
        return f"{self.names.address}:9876"

    async def state(self) -> SetReplicas | None:
        """The set as the controller shows it; None while it does not."""
        try:
            async with ControllerAdmin([f"{self.controller.address}:9877"], 2000) as controllers:
                found = await controllers.status([SET])
        except CometError:
            return None
        return found.sets.get(SET)

    def master_of(self, state: SetReplicas) -> Machine:
        """The machine of the master."""
        return next(
            each for each in self.brokers if each.address == str(state.master_address).split(":")[0]
        )

    async def until(self, holds: Callable[[SetReplicas], bool]) -> SetReplicas:
        """Wait until the controller shows what is wanted."""
        deadline = time.monotonic() + WAIT_S
        while True:
            state = await self.state()
            if state is not None and holds(state):
                return state
            assert time.monotonic() < deadline, state
            await asyncio.sleep(0.02)

    async def whole(self) -> Machine:
        """Wait until all brokers that run are in sync; return the master's machine."""
        count = len(self.brokers)
        state = await self.until(
            lambda state: (
                state.master_id is not None
                and len(state.in_sync) == count
                and all(each.is_alive for each in state.in_sync)
            )
        )
        return self.master_of(state)

    @contextlib.asynccontextmanager
    async def producing(self, clients: int = 4) -> AsyncIterator[None]:
        """Send all the time; a send that fails is noted and sent again as another message."""
        is_over = asyncio.Event()
        # Without numbers a send whose answer was lost with its master would be stored twice.
        async with cometmq.Producer(
            "p", name_server=self.name_server, producer_id=f"p{next(_NUMBERS)}"
        ) as producer:

            async def client() -> None:
                while not is_over.is_set():
                    body = b"%d" % next(_NUMBERS) + bytes(500)
                    began = time.monotonic()
                    try:
                        result = await producer.send(Message(TOPIC, body))
                    except CometError as error:
                        self.faults.append(str(error))
                        continue
                    if result.status.name == "SEND_OK":
                        self.acknowledged.add(body)
                        self.ends[body] = decode_offset_message_id(result.offset_message_id)[1]
                        self.answered.append((began, time.monotonic()))
                    await asyncio.sleep(0.005)

            tasks = [asyncio.create_task(client()) for _ in range(clients)]
            try:
                yield
            finally:
                is_over.set()
                await asyncio.gather(*tasks)

    async def first_answer(self, moment: float) -> float:
        """Wait for the first acknowledged send that began after a moment; return how long it took
        from then on."""
        deadline = time.monotonic() + WAIT_S
        while True:
            ends = [end for began, end in self.answered[-2000:] if began > moment]
            if ends:
                return min(ends) - moment
            assert time.monotonic() < deadline, self.faults[-3:]
            await asyncio.sleep(0.005)

    async def check(self) -> None:
        """Every acknowledged message is there once, and all logs are equal."""
        await self.whole()
        bodies: list[bytes] = []
        deadline = time.monotonic() + WAIT_S
        async with cometmq.PullConsumer(
            f"g{next(_NUMBERS)}", {TOPIC: "*"}, name_server=self.name_server, consume_from="first"
        ) as consumer:
            while self.acknowledged - set(bodies) and time.monotonic() < deadline:
                bodies += [message.body for message in await consumer.poll(timeout_ms=1000)]
        assert self.acknowledged - set(bodies) == set()
        assert len(bodies) == len(set(bodies))
        assert self.acknowledged
        deadline = time.monotonic() + WAIT_S
        while len(set(logs := [self._log(number) for number in range(len(self.brokers))])) > 1:
            assert time.monotonic() < deadline, [len(log) for log in logs]
            await asyncio.sleep(0.1)

    def _log(self, number: int) -> bytes:
        """The log of a broker, without the zeros behind its end."""
        folder = self.folder / f"b{number}" / "commitlog"
        return b"".join(path.read_bytes() for path in sorted(folder.iterdir())).rstrip(b"\0")


@contextlib.contextmanager
def rig(
    folder: Path,
    *,
    settings: dict[str, str] | None = None,
    environment: Callable[[str], dict[str, str]] = lambda name: {},
) -> Iterator[Rig]:
    """Run a set; everything of it is removed at the end.

    Args:
        settings: of the brokers.
        environment: what the process of the machine with a name gets.
    """
    number = next(_NUMBERS)
    bridge, net = f"cmq{os.getpid() % 1000}x{number}", f"10.{200 + number % 50}.{os.getpid() % 250}"
    ip("link", "add", bridge, "type", "bridge")
    with contextlib.ExitStack() as stack:
        stack.callback(ip, "link", "del", bridge)
        ip("addr", "add", f"{net}.1/24", "dev", bridge)
        ip("link", "set", bridge, "up")

        def machine(name: str, host: int, command: list[str]) -> Machine:
            return started(name, host, [sys.executable, "-m", "cometmq", *command])

        def started(name: str, host: int, command: list[str]) -> Machine:
            made = Machine(name, bridge, f"{net}.{host}", folder, command, environment(name))
            stack.callback(made.remove)
            made.start()
            return made

        names = machine(
            "n",
            3,
            [
                *("name-server", "--set", f"kvConfigPath={folder}/kv.json"),
                *("--set", f"configStorePath={folder}/names.conf"),
            ],
        )
        controller = machine(
            "c",
            2,
            [
                *("controller", "--store", f"{folder}/controller"),
                *("--set", f"cometmqControllerAddress={net}.2:9877"),
            ],
        )
        values = {
            "brokerName": SET,
            "enableControllerMode": "true",
            "controllerAddr": f"{net}.2:9877",
            "minInSyncReplicas": "2",
            "mappedFileSizeCommitLog": str(16 << 20),
            **(settings or {}),
        }
        brokers = [
            machine(
                f"b{number}",
                4 + number,
                [
                    *("broker", "-n", f"{net}.3:9876", "--store", f"{folder}/b{number}"),
                    *("--set", f"brokerIP1={net}.{4 + number}"),
                    *(f"--set={key}={value}" for key, value in values.items()),
                ],
            )
            for number in range(3)
        ]
        yield Rig(names, controller, brokers, folder, started)
