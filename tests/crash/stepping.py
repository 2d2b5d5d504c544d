"""What the kill tests share: a real broker process that ends itself by SIGKILL at a named step.

Or that fills the file system its store lies on there, and lives on.
"""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.raw_client import RawClient
from tests.request_fields import pull_fields

from cometmq.codec.stored_message import StoredMessage, decode_messages

BROKER = """
import asyncio, json, os, signal, sys
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from cometmq.broker.base.config import load_config
from cometmq.net.env import SystemClock, system_environment
from cometmq.standalone import Standalone

store, owner, settings, ahead_ms = sys.argv[1:]
armed = Path(store, "armed")
hits = []

class Clock(SystemClock):
    def now_ms(self):
        return super().now_ms() + int(ahead_ms)

def fill():
    with Path(store).with_name("filler").open("ab", buffering=0) as file:
        for size in (1 << 20, 4096):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue

def at(name):
    step, hit, act = armed.read_text().split(":") if armed.exists() else ("", "", "")
    if name == step:
        hits.append(name)
        if len(hits) == int(hit):
            if act == "fill":
                fill()
            armed.rename(Path(store, "hit"))
            if act == "kill":
                os.kill(os.getpid(), signal.SIGKILL)

async def main():
    config = load_config(environment={}, overrides={
        "brokerName": "broker-a", "brokerIP1": "127.0.0.1", "bindAddress": "127.0.0.1",
        "listenPort": 0, "storePathRootDir": store, "mappedFileSizeCommitLog": 1 << 20,
        "mappedFileSizeConsumeQueue": 20 * 500, "maxHashSlotNum": 1000, "maxIndexNum": 4000,
        **json.loads(settings),
    }).config
    environment = replace(system_environment(), clock=Clock())
    standalone = Standalone(config, name_server_port=0, env=environment)
    await standalone.start()
    attrgetter(owner)(standalone.broker).at = at
    print(standalone.name_server_address, standalone.broker_address, flush=True)
    await asyncio.Event().wait()

asyncio.run(main())
"""


class Life:
    """One life of a broker; `owner` is the part of it whose steps count, by its attributes."""

    def __init__(
        self,
        store: Path,
        owner: str,
        settings: dict[str, object],
        step: str = "",
        hit: int = 0,
        *,
        ahead_ms: int = 0,
    ) -> None:
        """With `step`, it ends itself when it comes there for the `hit`-th time.

        `ahead_ms` is how much later its clock is than ours.
        """
        self.store = store
        self.step = step
        if step:
            self.arm(step, hit)
        self._process = subprocess.Popen(
            [sys.executable, "-c", BROKER, str(store), owner, json.dumps(settings), str(ahead_ms)],
            stdout=subprocess.PIPE,
            text=True,
            env={key: value for key, value in os.environ.items() if key != "NAMESRV_ADDR"},
        )
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            self.close()
        assert line, "the broker did not start; its stderr says why"
        self.name_server, self.address = line.split()
        self.pid = self._process.pid

    def arm(self, step: str, hit: int, act: str = "kill") -> None:
        """Let it end itself at this step, when it comes there so many times from now.

        Or, with `act` "fill", take every block that its file system has left, as ``filler`` beside
        the store; it goes on then.
        """
        self.store.mkdir(parents=True, exist_ok=True)
        (self.store / "armed").write_text(f"{step}:{hit}:{act}")
        self.step = step

    @property
    def has_hit(self) -> bool:
        """Whether it has come to its step, and done there what it was to do."""
        return (self.store / "hit").exists()

    def kill(self) -> None:
        """SIGKILL from outside, wherever it is."""
        assert not self.is_over
        self.close()

    @property
    def is_over(self) -> bool:
        """Whether the process has ended."""
        return self._process.poll() is not None

    def check_killed(self, timeout_s: float = 100) -> None:
        """It has ended itself at its step, and at no other."""
        assert self._process.wait(timeout=timeout_s) == -signal.SIGKILL
        hit = self.store / "hit"
        assert hit.read_text().partition(":")[0] == self.step
        hit.unlink()

    def close(self) -> None:
        """End it, if it has not ended."""
        if not self.is_over:
            self._process.kill()
        assert self._process.stdout is not None
        if not self._process.stdout.closed:
            self._process.communicate()


def read_queue(
    client: RawClient, topic: str, queue_id: int, offset: int = 0
) -> Iterator[StoredMessage]:
    """What readers see of a queue from an offset on, without a hole."""
    while True:
        answer = client.call(11, pull_fields(topic, offset, queue_id))
        if answer.code != 0:
            assert answer.code in (17, 19), answer.remark
            return
        for message in decode_messages(answer.body):
            assert message.queue_offset == offset
            yield message
            offset += 1
