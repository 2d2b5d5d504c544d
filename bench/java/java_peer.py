"""RocketMQ's Java broker for a comparison: fetches, starts and stops it.

Needs `java`, and `mvn` once: the jars of a release are fetched by Maven into a cache folder
(`COMETMQ_INTEROP_CACHE`, else `~/.cache/cometmq/java`), and `javac` builds the load program of
`bench/java` there, under the digest of its source.  If something is missing, `PeerMissing` names it
and the remedy in one sentence; a peer that exists and does not start is an ordinary error.

Broker and name server run as shipped (G1, a heap that is touched before serving), with the heap
size of the comparison and the keys of `broker_conf`.  Only the small heap of the memory rows is not
touched.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.base.control import wait_until_served
from bench.base.measure import on_core
from bench.base.processes import Server, free_ports
from cometmq.errors import ClientError, CometError
from cometmq.net.channel import ChannelPool
from cometmq.net.env import system_environment
from cometmq.net.loop import run
from cometmq.net.network import TcpNetwork

__all__ = [
    "JAVA_VERSION",
    "RATE_HEAP",
    "READY_S_MAX",
    "SMALL_HEAP",
    "JavaBroker",
    "PeerMissing",
    "broker_conf",
    "cache_folder",
    "fetch_jars",
    "join_java_broker",
    "load_program",
    "server_class_path",
    "start_java_broker",
    "start_java_name_server",
]

JAVA_VERSION: Final = "5.4.0"
HERE: Final = Path(__file__).resolve().parent
FETCH_S_MAX: Final = 600
BUILD_S_MAX: Final = 120
READY_S_MAX: Final = 180.0
"""A JVM among busy processes takes a minute to come up."""
START_ATTEMPTS: Final = 3
RATE_HEAP: Final = "4g"
SMALL_HEAP: Final = "256m"
NAME_SERVER_HEAP: Final = "256m"
LOAD_HEAP: Final = "1g"

_OPENED: Final = (
    "--add-exports=java.base/jdk.internal.ref=ALL-UNNAMED",
    "--add-opens=java.base/java.nio=ALL-UNNAMED",
    "--add-opens=java.base/sun.nio.ch=ALL-UNNAMED",
)
#: The JVM options of distribution/bin/runbroker.sh without the heap's size.
_BROKER_OPTIONS: Final = (
    "-server",
    "-XX:+UseG1GC",
    "-XX:G1ReservePercent=25",
    "-XX:InitiatingHeapOccupancyPercent=30",
    "-XX:SoftRefLRUPolicyMSPerMB=0",
    "-XX:-OmitStackTraceInFastThrow",
    "-XX:MaxDirectMemorySize=2g",
)


class PeerMissing(CometError):
    """This machine lacks the Java side; the text names the cause and the remedy."""


def cache_folder() -> Path:
    """The folder of jars and of the built load program."""
    named = os.environ.get("COMETMQ_INTEROP_CACHE")
    base = os.environ.get("XDG_CACHE_HOME") or str(Path.home() / ".cache")
    folder = Path(named) if named else Path(base) / "cometmq" / "java"
    folder.mkdir(parents=True, exist_ok=True)
    return folder.resolve()


def _need(program: str, why: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise PeerMissing(f"{program} is not installed, {why}")
    return found


def fetch_jars(artifact: str, version: str = JAVA_VERSION) -> Path:
    """The folder with the jars of one RocketMQ artifact and its dependencies.

    Raises:
        PeerMissing: there is no Maven, or Maven could not fetch them.
    """
    folder = cache_folder() / f"{artifact}-{version}"
    if (folder / "complete").exists():
        return folder
    maven = _need("mvn", f"which fetches {artifact} {version}; install Maven")
    command = [maven, "--batch-mode", "--quiet", "--file", str(HERE / "pom.xml")]
    command += ["dependency:copy-dependencies", f"-Dartifact={artifact}", f"-Drocketmq={version}"]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={folder}"]
    try:
        result = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_S_MAX, check=False
        )
    except subprocess.TimeoutExpired:
        raise PeerMissing(f"Maven did not fetch {artifact} {version} in {FETCH_S_MAX} s") from None
    if result.returncode:
        lines = [line for line in result.stdout.splitlines() if "ERROR" in line]
        why = lines[0] if lines else result.stderr.strip()[-300:]
        raise PeerMissing(f"Maven could not fetch {artifact} {version}: {why}")
    (folder / "complete").touch()
    return folder


def _java() -> str:
    return _need("java", "which runs RocketMQ; install a JDK 17 or newer")


def server_class_path() -> str:
    """The jars of RocketMQ's broker and name server."""
    _java()
    return f"{fetch_jars('rocketmq-broker')}/*:{fetch_jars('rocketmq-namesrv')}/*"


def load_program(home: Path, *, is_binary: bool = False) -> list[str]:
    """The command line of the load program; RocketMQ's client writes its logs to `home`.

    Its requests have JSON headers, or with `is_binary` RocketMQ's binary ones.

    Raises:
        PeerMissing: Java, its compiler, Maven or the jars are missing.
    """
    java = _java()
    jars = f"{fetch_jars('rocketmq-client')}/*"
    source = HERE / "Load.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    classes = cache_folder() / f"load-{JAVA_VERSION}-{digest}"
    if not (classes / "complete").exists():
        compiler = _need("javac", "which builds the load program; install a JDK, not only a JRE")
        result = subprocess.run(
            [compiler, "-nowarn", "-d", str(classes), "-cp", jars, str(source)],
            capture_output=True,
            text=True,
            timeout=BUILD_S_MAX,
            check=False,
        )
        if result.returncode:
            raise PeerMissing(f"javac could not build {source.name}: {result.stderr.strip()[:400]}")
        (classes / "complete").touch()
    return [
        *(java, f"-Xms{LOAD_HEAP}", f"-Xmx{LOAD_HEAP}"),
        *(f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}/logs"),
        *(("-Drocketmq.serialize.type=ROCKETMQ",) if is_binary else ()),
        *("-cp", f"{classes}:{jars}", "Load"),
    ]


@dataclass(slots=True)
class JavaBroker:
    """A running Java broker and its name server."""

    broker: Server
    name_server: Server

    def pause(self) -> None:
        """Stop both processes, so that the other side has the core alone."""
        self.broker.pause()
        self.name_server.pause()

    def resume(self) -> None:
        """Let both processes continue."""
        self.name_server.resume()
        self.broker.resume()


def _free_port_with_neighbours() -> int:
    """A port P that is free together with P-2 (the VIP channel) and P+1 (replication)."""

    async def are_free(port: int) -> bool:
        network = TcpNetwork()
        listeners = []
        try:
            for number in (port - 2, port, port + 1):
                listeners.append(await network.listen("127.0.0.1", number, asyncio.Protocol))
        except CometError:
            return False
        finally:
            for listener in listeners:
                listener.close()
        return True

    while True:
        (port,) = free_ports(1)
        if 1100 < port < 65000 and run(are_free(port)):
            return port


def _spawn(command: list[str], home: Path, log: Path, core: int | None) -> subprocess.Popen[bytes]:
    environment = {k: v for k, v in os.environ.items() if k != "NAMESRV_ADDR"}
    environment["ROCKETMQ_HOME"] = str(home)
    with log.open("ab") as out, on_core(core):
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            cwd=home,
            env=environment,
        )


def _is_listening(address: str) -> bool:
    async def dial() -> bool:
        pool = ChannelPool(system_environment())
        try:
            await pool.get(address, 500)
        except CometError:
            return False
        finally:
            await pool.close()
        return True

    return run(dial())


@contextlib.contextmanager
def start_java_name_server(folder: Path, *, core: int | None = None) -> Iterator[Server]:
    """Run a name server on a free port; `ready_s` is the time until it accepted a connection.

    Raises:
        PeerMissing: Java or the jars are missing.
        ClientError: it did not start.
    """
    class_path = server_class_path()
    folder.mkdir(parents=True, exist_ok=True)
    (port,) = free_ports(1)
    (folder / "namesrv.conf").write_text(f"listenPort={port}\n", "utf-8")
    command = [_java(), f"-Xms{NAME_SERVER_HEAP}", f"-Xmx{NAME_SERVER_HEAP}"]
    command += [f"-Duser.home={folder}", *_OPENED, "-cp", class_path]
    command += ["org.apache.rocketmq.namesrv.NamesrvStartup", "-c", str(folder / "namesrv.conf")]
    log = folder / "namesrv.log"
    begin = time.monotonic()
    process = _spawn(command, folder, log, core)
    address = f"127.0.0.1:{port}"
    server = Server(address, address, process, log, 0.0)
    try:
        while not _is_listening(address):
            if process.poll() is not None or time.monotonic() > begin + READY_S_MAX:
                raise ClientError(f"the Java name server does not serve: {_last_words(server)}")
            time.sleep(0.01)
        server.ready_s = time.monotonic() - begin
        yield server
    finally:
        server.stop()


def broker_conf(
    store: Path, port: int, name_server: str, settings: Mapping[str, str]
) -> dict[str, str]:
    """The broker's configuration; every other key has its default."""
    return {
        "brokerClusterName": "DefaultCluster",
        "brokerName": "broker-a",
        "brokerId": "0",
        "brokerIP1": "127.0.0.1",
        "listenPort": str(port),
        "namesrvAddr": name_server,
        "storePathRootDir": str(store),
        "storePathCommitLog": f"{store}/commitlog",
        "autoCreateTopicEnable": "true",
        # Otherwise a send that waits longer is refused, and the round has no result.
        "waitTimeMillsInSendQueue": "10000",
        **settings,
    }


@contextlib.contextmanager
def start_java_broker(
    folder: Path,
    *,
    core: int | None = None,
    heap: str = RATE_HEAP,
    settings: Mapping[str, str] | None = None,
    ready_s_max: float = READY_S_MAX,
) -> Iterator[JavaBroker]:
    """Run a name server and a broker on `folder`/store until the broker answers a request.

    The broker's `ready_s` counts from its own start; the name server already runs.

    Raises:
        PeerMissing: Java or the jars are missing.
        ClientError: one of them did not start.
    """
    folder = folder.resolve()
    with start_java_name_server(folder, core=core) as name_server:
        broker = _broker_on_free_ports(
            folder, name_server.address, core, heap, settings or {}, ready_s_max
        )
        try:
            yield JavaBroker(broker, name_server)
        finally:
            broker.stop()


@contextlib.contextmanager
def join_java_broker(
    folder: Path, name_server: str, *, heap: str, settings: Mapping[str, str]
) -> Iterator[Server]:
    """Run one more broker, for example a slave, at a name server that is there.

    Raises:
        PeerMissing: Java or the jars are missing.
        ClientError: it did not start.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    broker = _broker_on_free_ports(folder, name_server, None, heap, settings, READY_S_MAX)
    try:
        yield broker
    finally:
        broker.stop()


def _broker_on_free_ports(
    folder: Path,
    name_server: str,
    core: int | None,
    heap: str,
    settings: Mapping[str, str],
    ready_s_max: float,
) -> Server:
    """Start a broker that serves; try other ports if another process has taken one."""
    for attempts_left in range(START_ATTEMPTS - 1, -1, -1):
        port = _free_port_with_neighbours()
        conf = broker_conf(folder / "store", port, name_server, settings)
        path = folder / "broker.conf"
        path.write_text("".join(f"{key}={value}\n" for key, value in conf.items()), "utf-8")
        command = [_java(), f"-Xms{heap}", f"-Xmx{heap}", *_BROKER_OPTIONS]
        # As shipped; the memory rows leave it out for a small process.
        command += ["-XX:+AlwaysPreTouch"] if heap != SMALL_HEAP else []
        command += [f"-Duser.home={folder}", *_OPENED, "-cp", server_class_path()]
        command += ["org.apache.rocketmq.broker.BrokerStartup", "-c", str(path)]
        log = folder / "broker.log"
        begin = time.monotonic()
        process = _spawn(command, folder, log, core)
        broker = Server(f"127.0.0.1:{port}", name_server, process, log, 0.0)
        try:
            broker.ready_s = _ready_s(broker, begin, ready_s_max)
        except BaseException as error:
            broker.stop()
            taken = "already in use" in log.read_text(errors="replace")
            if not (taken and attempts_left and isinstance(error, ClientError)):
                raise
            log.unlink()
            continue
        return broker
    raise AssertionError("the last attempt returned or raised")


def _ready_s(broker: Server, begin: float, ready_s_max: float) -> float:
    env = system_environment()
    while time.monotonic() < begin + ready_s_max:
        ready = run(wait_until_served(env, broker.address, 1.0))
        if ready is not None:
            return ready - begin
        if broker.process.poll() is not None:
            break
    how = "ended" if broker.process.poll() is not None else f"did not serve in {ready_s_max:.0f} s"
    raise ClientError(f"the Java broker {how}; its last words: {_last_words(broker)}")


def _last_words(server: Server) -> str:
    """The last lines of a Java server's log, without messages of the logging library."""
    lines = [line for line in server.log_tail().splitlines() if "|-INFO" not in line]
    return " / ".join(lines[-5:]) or "none"
