"""A real cluster inside the test's own process, ready in milliseconds.

The real name server and broker listen on free ports of 127.0.0.1, with a store that is removed
afterwards.  Nothing is faked.

    async with embedded_cluster() as cluster:
        async with Producer("group", name_server=cluster.name_server_address) as producer:
            await producer.send(Message("topic", b"body"))

`threaded_cluster` is the same for tests without an event loop of their own: the cluster runs in
a background thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Final

from cometmq.app import App
from cometmq.broker.base.config import load_config
from cometmq.errors import CometError
from cometmq.net.env import system_environment
from cometmq.standalone import Standalone
from cometmq.testing.clock import MovableClock

__all__ = [
    "SMALL_STORE",
    "EmbeddedCluster",
    "embedded_app",
    "embedded_cluster",
    "threaded_cluster",
]

# Small enough to create and delete quickly, large enough for any test.
SMALL_STORE: Final[Mapping[str, Any]] = {
    "mappedFileSizeCommitLog": 16 * 1024 * 1024,
    "mappedFileSizeConsumeQueue": 20 * 3000,
    "maxHashSlotNum": 5000,
    "maxIndexNum": 20_000,
}
START_TIMEOUT_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class EmbeddedCluster:
    """A running cluster: its addresses, its store path, its servers and the broker's clock."""

    name_server_address: str
    broker_address: str
    store_path: str
    standalone: Standalone
    clock: MovableClock
    loop: asyncio.AbstractEventLoop
    """The servers run on it."""

    def pass_time(self, seconds: float) -> None:
        """Set the broker's clock forward, as if so much time had passed at once.

        The broker delivers what is due by then: delayed and timed messages, and retries.  Its
        clients stay connected.  May be called in any thread.
        """
        self._on_loop(partial(self._move, round(seconds * 1000)))

    def until(self, condition: Callable[[], object], timeout_s: float = 10.0) -> None:
        """Wait until a condition holds; time passes as soon as a message waits for its delivery.

        For tests whose thread does not run the cluster.

        Raises:
            CometError: it does not hold after `timeout_s` of the machine's time.
        """
        deadline_s = self.clock.monotonic() + timeout_s
        while not condition():
            if self.clock.monotonic() > deadline_s:
                raise CometError(f"{condition!r:.100} does not hold after {timeout_s:g} s")
            self._on_loop(self._skip_wait)
            time.sleep(0.001)

    def _on_loop(self, work: Callable[[], None]) -> None:
        """Run `work` on the servers' loop, and wait for it."""
        try:
            is_here = asyncio.get_running_loop() is self.loop
        except RuntimeError:
            is_here = False
        if is_here:
            work()
            return
        done: Future[None] = Future()

        def run() -> None:
            try:
                work()
            except BaseException as error:
                done.set_exception(error)
            else:
                done.set_result(None)

        self.loop.call_soon_threadsafe(run)
        done.result(START_TIMEOUT_S)

    def _skip_wait(self) -> None:
        """Let the time pass until the next message is due, if one waits."""
        broker, now_ms = self.standalone.broker, self.clock.now_ms()
        due_ms = broker.services.schedule.next_due_ms()
        timers = broker.services.timers
        if timers is not None and timers.pending_count():
            # A slot of the wheel has messages of a second.
            next_ms = now_ms + timers.rules.precision_ms
            due_ms = next_ms if due_ms is None else min(due_ms, next_ms)
        if due_ms is not None and due_ms > now_ms:
            self._move(due_ms - now_ms)

    def _move(self, milliseconds: int) -> None:
        self.clock.ahead_ms += milliseconds
        state = self.standalone.broker.state
        members = [
            *(group.members for group in state.consumers.all().values()),
            *state.producers.all().values(),
        ]
        for member in {id(one): one for each in members for one in each.values()}.values():
            member.last_update_ms += milliseconds  # no client was silent so long
        self.standalone.broker.look_at_clock()


def _standalone(
    store_path: str, settings: Mapping[str, Any], clock: MovableClock, *, is_insecure: bool
) -> Standalone:
    overrides: dict[str, Any] = {
        **SMALL_STORE,
        "brokerName": "broker-a",
        "brokerIP1": "127.0.0.1",
        "bindAddress": "127.0.0.1",
        "listenPort": 0,
        "namesrvAddr": "",
        "storePathRootDir": store_path,
        **settings,
    }
    # Without environment: a developer's NAMESRV_ADDR must not affect tests.
    loaded = load_config(overrides=overrides, environment={}, is_insecure=is_insecure)
    # Routes expire by the name server's clock, which is the machine's.
    env = system_environment()
    return Standalone(
        loaded.config, name_server_port=0, env=env, broker_env=replace(env, clock=clock)
    )


@contextlib.asynccontextmanager
async def embedded_cluster(
    settings: Mapping[str, Any] | None = None,
    *,
    store_path: str | None = None,
    insecure: bool = False,
) -> AsyncIterator[EmbeddedCluster]:
    """Run a name server and a broker on this event loop.

    Args:
        settings: broker configuration by RocketMQ's keys, for example
            `{"flushDiskType": "SYNC_FLUSH"}`.
        store_path: a directory to keep; by default a temporary one that is removed.
        insecure: start although `settings` ask for protection this version does not have.

    Raises:
        ConfigError: a setting is unknown, has a bad value, or asks for a missing feature.
    """
    with contextlib.ExitStack() as stack:
        path = store_path or stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-"))
        clock = MovableClock()
        standalone = _standalone(path, settings or {}, clock, is_insecure=insecure)
        try:
            await standalone.start()
            yield EmbeddedCluster(
                standalone.name_server_address,
                standalone.broker_address,
                path,
                standalone,
                clock,
                asyncio.get_running_loop(),
            )
        finally:
            await standalone.stop()


@contextlib.asynccontextmanager
async def embedded_app(
    app: App, settings: Mapping[str, Any] | None = None
) -> AsyncIterator[EmbeddedCluster]:
    """Run an App against a cluster of its own, on this event loop.

        async with embedded_app(app) as cluster:
            await app.send("Orders", Order(7))

    Args:
        app: one that does not run; its own name servers are not used.
        settings: broker configuration, as for `embedded_cluster`.

    Raises:
        CometError: the App did not start.
    """
    async with embedded_cluster(settings) as cluster:
        await app.start(name_server=cluster.name_server_address)
        try:
            yield cluster
        finally:
            await app.shutdown()


@contextlib.contextmanager
def threaded_cluster(
    settings: Mapping[str, Any] | None = None,
    *,
    store_path: str | None = None,
    insecure: bool = False,
) -> Iterator[EmbeddedCluster]:
    """Run a cluster in a background thread; arguments as for `embedded_cluster`.

    Raises:
        CometError: the cluster did not start in time.
        ConfigError: as for `embedded_cluster`.
    """
    started: dict[str, EmbeddedCluster] = {}
    failed: list[BaseException] = []
    is_ready, stop = threading.Event(), threading.Event()

    async def serve() -> None:
        async with embedded_cluster(settings, store_path=store_path, insecure=insecure) as cluster:
            started["cluster"] = cluster
            is_ready.set()
            await asyncio.to_thread(stop.wait)

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            failed.append(error)
        finally:
            is_ready.set()

    thread = threading.Thread(target=run, name="cometmq-cluster", daemon=True)
    thread.start()
    try:
        if not is_ready.wait(START_TIMEOUT_S):
            raise CometError(f"the cluster did not start within {START_TIMEOUT_S} s")
        if failed:
            raise failed[0]
        yield started["cluster"]
    finally:
        stop.set()
        thread.join(START_TIMEOUT_S)
    if failed:
        raise failed[0]
