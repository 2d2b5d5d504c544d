"""Foreign peers: fetches and builds each once, and gives the command line that starts it.

Job: turn "the Java client 5.4.0" into a command line, or into one sentence with the reason why not.
Must not: hide a failure. A missing runtime, or a package that cannot be fetched, is `Unavailable`;
a peer that exists and does not build or start is an error.

Fetched and built files go to a cache folder: `COMETMQ_INTEROP_CACHE`, else `interop/.cache`.  The
name of a built program contains the digest of its source, so a stale one never runs.
"""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

__all__ = [
    "GO",
    "JAVA_CLIENTS",
    "JAVA_SERVER",
    "Unavailable",
    "driver_command",
    "filter_command",
    "java_command",
    "java_server_class_path",
    "mqadmin_command",
]

HERE: Final = Path(__file__).resolve().parent
JAVA_CLIENTS: Final = ("5.4.0", "5.3.3", "4.9.8")
JAVA_SERVER: Final = "5.4.0"
GO: Final = "2.1.2"
FETCH_TIMEOUT_S: Final = 600
BUILD_TIMEOUT_S: Final = 600

_SMALL_JVM: Final = (
    "-Xms64m",
    "-Xmx256m",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-XX:-UsePerfData",
    "-Xshare:auto",
)


class Unavailable(Exception):
    """A peer is not available on this machine; the text gives the reason."""


def cache_folder() -> Path:
    """The folder of fetched and built files."""
    folder = Path(os.environ.get("COMETMQ_INTEROP_CACHE") or HERE / ".cache")
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _need(program: str) -> str:
    found = shutil.which(program)
    if found is None:
        raise Unavailable(f"{program} is not installed")
    return found


def _kept(name: str, make: Callable[[Path], None]) -> Path:
    """A file or folder of the cache.

    It is made beside its path and renamed, since two processes may make it at once.

    Args:
        make: makes the file or folder at a path.
    """
    kept = cache_folder() / name
    if not kept.exists():
        with tempfile.TemporaryDirectory(dir=cache_folder(), prefix="making-") as beside:
            made = Path(beside) / name
            make(made)
            try:
                made.rename(kept)
            except OSError:
                if not kept.exists():
                    raise
    return kept


def _fetch(artifact: str, version: str) -> Path:
    """The jars of one artifact and its dependencies."""
    return _kept(f"{artifact}-{version}", lambda folder: _copy_jars(artifact, version, folder))


def _copy_jars(artifact: str, version: str, folder: Path) -> None:
    maven = _need("mvn")
    result = subprocess.run(
        [
            maven,
            "--batch-mode",
            "--quiet",
            "--file",
            str(HERE / "java" / "pom.xml"),
            "dependency:copy-dependencies",
            f"-Dartifact={artifact}",
            f"-Drocketmq={version}",
            "-DincludeScope=runtime",
            f"-DoutputDirectory={folder}",
        ],
        capture_output=True,
        text=True,
        timeout=FETCH_TIMEOUT_S,
        check=False,
    )
    if result.returncode != 0:
        lines = [line for line in result.stdout.splitlines() if "ERROR" in line]
        raise Unavailable(
            f"{artifact} {version} could not be fetched: {lines[0] if lines else result.stderr}"
        )


def _digest(*paths: Path) -> str:
    digest = hashlib.sha256()
    for path in paths:
        digest.update(path.read_bytes())
    return digest.hexdigest()[:12]


def java_command(class_path: str, *options: str) -> list[str]:
    """The command line of a small JVM that starts quickly."""
    return [_need("java"), *_SMALL_JVM, *options, "-cp", class_path]


def _compiled(name: str, jars: str, *folders: str) -> Path:
    """The folder of our Java classes, compiled against a peer's jars."""
    _need("java")
    compiler = _need("javac")
    sources = [path for folder in folders for path in sorted((HERE / "java" / folder).glob("*"))]

    def compile_to(classes: Path) -> None:
        subprocess.run(
            [compiler, "-nowarn", "-d", str(classes), "-cp", jars, *map(str, sources)],
            check=True,
            timeout=BUILD_TIMEOUT_S,
        )

    return _kept(f"{name}-{_digest(*sources)}", compile_to)


def _java_driver(version: str, home: Path, *, is_binary: bool) -> list[str]:
    jars = f"{_fetch('rocketmq-client', version)}/*"
    classes = _compiled(f"driver-java-{version}", jars, "src")
    if version.startswith("4."):  # what signs requests was in an artifact of its own
        jars += f":{_fetch('rocketmq-acl', version)}/*"
    # The client writes logs and broadcasting offsets below the user's home.
    options = [f"-Duser.home={home}", f"-Drocketmq.client.logRoot={home}/logs"]
    if is_binary:
        options.append("-Drocketmq.serialize.type=ROCKETMQ")
    return [*java_command(f"{classes}:{jars}", *options), "Driver"]


def _go_driver() -> list[str]:
    go = _need("go")
    source = HERE / "go"
    files = [source / "go.mod", source / "go.sum", *sorted(source.glob("*.go"))]

    def build(program: Path) -> None:
        fetched = subprocess.run(
            [go, "mod", "download"],
            cwd=source,
            capture_output=True,
            text=True,
            timeout=FETCH_TIMEOUT_S,
            check=False,
        )
        if fetched.returncode != 0:
            raise Unavailable(f"the Go client {GO} could not be fetched: {fetched.stderr[-300:]}")
        subprocess.run(
            [go, "build", "-o", str(program), "."], cwd=source, check=True, timeout=BUILD_TIMEOUT_S
        )

    return [str(_kept(f"driver-go-{_digest(*files)}", build))]


def driver_command(peer: str, home: Path) -> list[str]:
    """The command line of a peer's driver.

    Args:
        peer: `java-5.4.0`, `java-4.9.8`, with `-binary` behind for binary headers, `go-2.1.2`, or
            `cometmq`.
        home: a folder for the client's own files.

    Raises:
        Unavailable: its runtime or its packages are missing.
    """
    home.mkdir(parents=True, exist_ok=True)
    if peer == "cometmq":
        return [sys.executable, str(HERE / "ours.py")]
    if peer == f"go-{GO}":
        return _go_driver()
    version = peer.removeprefix("java-").removesuffix("-binary")
    if version not in JAVA_CLIENTS:
        raise ValueError(f"no peer is called {peer}")
    return _java_driver(version, home, is_binary=peer.endswith("-binary"))


def java_server_class_path(version: str = JAVA_SERVER) -> str:
    """The jars of RocketMQ's broker and name server.

    Raises:
        Unavailable: there is no Java, or the jars cannot be fetched.
    """
    _need("java")
    broker = _fetch("rocketmq-broker", version)
    name_server = _fetch("rocketmq-namesrv", version)
    return f"{broker}/*:{name_server}/*"


def mqadmin_command(home: Path) -> list[str]:
    """The command line of the Java driver with RocketMQ's mqadmin; it writes below `home`.

    Raises:
        Unavailable: Java or its packages are missing.
    """
    home.mkdir(parents=True, exist_ok=True)
    jars = f"{_fetch('rocketmq-tools', JAVA_SERVER)}/*"
    classes = _compiled(f"mqadmin-{JAVA_SERVER}", jars, "src", "tools")
    options = [
        f"-Duser.home={home}",
        f"-Drocketmq.client.logRoot={home}/logs",
        "-Djava.security.manager=allow",
    ]
    return [*java_command(f"{classes}:{jars}", *options), "MqAdmin"]


def filter_command() -> list[str]:
    """The command line of a program that calls RocketMQ's filter classes from the broker's jars.

    Raises:
        Unavailable: Java or the jars are missing.
    """
    jars = f"{_fetch('rocketmq-broker', JAVA_SERVER)}/*"
    classes = _compiled(f"filtering-{JAVA_SERVER}", jars, "filter")
    return [*java_command(f"{classes}:{jars}"), "Filtering"]
