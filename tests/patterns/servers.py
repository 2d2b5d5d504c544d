"""Real PostgreSQL, MariaDB and Redis from Debian's packages, each in a folder of its own.

A server that is not installed, or whose driver is missing, is a visible skip.  All of them refuse
to run as root with their defaults, so they run as ``nobody`` then.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest

WAIT_S = 60
POSTGRES_FOLDERS = sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)


def need(*modules: str) -> None:
    """Skip where the lane's drivers are not installed."""
    for module in modules:
        if find_spec(module) is None:
            pytest.skip(f"{module} is not installed: make patterns installs it")


def program(name: str, *folders: Path) -> str:
    """The path of a server's program; skips without it."""
    path = os.pathsep.join([*map(str, folders), os.environ["PATH"], "/usr/sbin"])
    found = shutil.which(name, path=path)
    if found is None:
        pytest.skip(f"{name} is not installed: make peers installs it")
    return found


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def as_nobody(folder: Path) -> list[str]:
    """The words that run a command as another user than root, who then owns the folder."""
    if os.getuid() != 0:
        return []
    subprocess.run(["chown", "-R", "nobody", str(folder)], check=True)
    for parent in [folder, *folder.parents]:
        if parent.stat().st_uid == 0 and parent != Path("/"):
            parent.chmod(parent.stat().st_mode | 0o055)
    return ["setpriv", "--reuid=nobody", "--clear-groups"]


def wait_for(process: subprocess.Popen[bytes], is_ready: Callable[[], bool], log: Path) -> None:
    end = time.monotonic() + WAIT_S
    while not is_ready():
        if process.poll() is not None or time.monotonic() > end:
            raise AssertionError(f"the server did not start: {log.read_text()[-2000:]}")
        time.sleep(0.05)


def accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@contextmanager
def running(
    command: list[str], folder: Path, is_ready: Callable[[], bool]
) -> Iterator[subprocess.Popen[bytes]]:
    """A server process until the end of the block."""
    log = folder.parent / f"{folder.name}.log"
    with (
        log.open("wb") as output,
        subprocess.Popen(command, stdout=output, stderr=output, cwd=folder) as process,
    ):
        try:
            wait_for(process, is_ready, log)
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()


@contextmanager
def postgresql(folder: Path) -> Iterator[int]:
    """PostgreSQL on a free port: user ``postgres``, no password."""
    initdb, server = program("initdb", *POSTGRES_FOLDERS), program("postgres", *POSTGRES_FOLDERS)
    ready = program("pg_isready", *POSTGRES_FOLDERS)
    folder.mkdir()
    user = as_nobody(folder)
    data = folder / "data"
    subprocess.run(
        [*user, initdb, "-D", str(data), "-U", "postgres", "-A", "trust", "--no-sync"],
        check=True,
        stdout=subprocess.DEVNULL,
        cwd=folder,
    )
    port = free_port()
    command = [*user, server, "-D", str(data), "-p", str(port), "-k", str(folder)]
    asking = [ready, "-h", "127.0.0.1", "-p", str(port), "-q"]
    with running(command, folder, lambda: subprocess.run(asking, check=False).returncode == 0):
        yield port


@contextmanager
def mariadb(folder: Path) -> Iterator[int]:
    """MariaDB on a free port: user ``test``, no password, database ``test``."""
    server = program("mariadbd")
    install = program("mariadb-install-db")
    folder.mkdir()
    user = as_nobody(folder)
    data = folder / "data"
    subprocess.run(
        [
            *user,
            install,
            "--no-defaults",
            f"--datadir={data}",
            f"--tmpdir={folder}",
            "--skip-test-db",
        ],
        check=True,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=folder,
    )
    port = free_port()
    setup = folder / "setup.sql"
    setup.write_text(
        "create database test character set utf8mb4;\n"
        "create user test@'127.0.0.1';\ngrant all on *.* to test@'127.0.0.1';\n"
    )
    setup.chmod(0o644)
    command = [
        *user,
        server,
        "--no-defaults",
        f"--datadir={data}",
        f"--tmpdir={folder}",
        f"--port={port}",
        "--bind-address=127.0.0.1",
        "--skip-name-resolve",
        f"--socket={folder / 'mysql.sock'}",
        f"--init-file={setup}",
    ]
    with running(command, folder, lambda: accepts(port)):
        yield port


@contextmanager
def redis(folder: Path) -> Iterator[int]:
    """Redis or Valkey on a free port, without files."""
    server = shutil.which("valkey-server") or program("redis-server")
    folder.mkdir()
    port = free_port()
    command = [server, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--dir", "."]
    with running(command, folder, lambda: accepts(port)):
        yield port
