"""What metrics, limits, TLS and access control cost a message: broker and client, by turns.

    .venv/bin/python -m bench.guards [--rounds 5] [--messages 20000]

Each variant has a broker of its own, a process, for the whole run; the client is this process,
with 64 sends in flight.  A round sends the messages to one variant after the other, so that what
else the machine does meets all of them.  Printed are the medians: microseconds of the broker's and
of the client's processor a message, the rate, and the broker's share beside the open variant.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from shutil import which
from typing import Any, Final, NamedTuple

import psutil

from cometmq import Admin, Message, Producer
from cometmq.net.loop import run
from cometmq.net.tls import Tls

TOPIC: Final = "Guards"
BODY: Final = bytes(1024)
IN_FLIGHT: Final = 64
USER: Final = ("root", "secret-of-root")
_KEYS: Final = {"access_key": USER[0], "secret_key": USER[1]}


class Variant(NamedTuple):
    """Settings of a broker, and what its clients need."""

    settings: dict[str, Any]
    client: dict[str, Any]


def variants(folder: Path) -> dict[str, Variant]:
    """What is compared."""
    subprocess.run(
        [which("openssl") or "openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt",
         "ec_paramgen_curve:P-256", "-nodes", "-keyout", f"{folder}/key.pem",
         "-out", f"{folder}/cert.pem", "-days", "2",
         "-subj", "/CN=localhost", "-addext", "subjectAltName=IP:127.0.0.1"],
        check=True, capture_output=True,
    )  # fmt: skip
    access = {
        "authenticationEnabled": "true",
        "initAuthenticationUser": json.dumps({"username": USER[0], "password": USER[1]}),
    }
    tls = {
        "tls.server.certPath": f"{folder}/cert.pem",
        "tls.server.keyPath": f"{folder}/key.pem",
        "tls.enable": "true",
        "tls.client.trustCertPath": f"{folder}/cert.pem",
    }
    return {
        "open": Variant({}, {}),
        "metrics": Variant({"metricsExporterType": "PROM", "metricsPromExporterPort": "0"}, {}),
        "limits": Variant({"requestsPerSecondMax": "1000000", "framesInFlightMax": "100000"}, {}),
        "TLS": Variant(tls, {"tls": Tls(ca_file=f"{folder}/cert.pem")}),
        "signatures": Variant(access, dict(_KEYS)),
        "signatures and permissions": Variant(
            {**access, "authorizationEnabled": "true"}, dict(_KEYS)
        ),
    }


@contextlib.contextmanager
def serving(name: str, settings: dict[str, Any], folder: Path) -> Iterator[tuple[str, int]]:
    """Run `cometmq up` with these settings; give the name server's address and the process id."""
    lines = [f"--set={key}={value}" for key, value in settings.items()]
    with subprocess.Popen(
        [sys.executable, "-m", "cometmq", "up", "--name-server-port", "0", "--broker-port", "0",
         "--store", str(folder / name.replace(" ", "-")), *lines],
        stdout=subprocess.PIPE, text=True,
    ) as process:  # fmt: skip
        assert process.stdout is not None
        ready = process.stdout.readline()
        words = ready.replace(",", " ").split()
        address = words[words.index("server") + 1]
        try:
            yield address, process.pid
        finally:
            process.terminate()


async def send(address: str, client: dict[str, Any], count: int) -> None:
    """Send messages with a bounded number in flight."""
    async with Producer("bench", name_server=address, **client) as producer:
        left = iter(range(count))

        async def work() -> None:
            for _ in left:
                await producer.send(Message(TOPIC, BODY))

        await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))


async def create(address: str, client: dict[str, Any]) -> None:
    """Create the topic."""
    async with Admin(name_server=address, **client) as admin:
        await admin.create_topic(TOPIC, queue_count=8)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--messages", type=int, default=20_000)
    given = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cometmq-bench-")))
        made = variants(folder)
        running = {
            name: stack.enter_context(serving(name, variant.settings, folder))
            for name, variant in made.items()
        }
        figures: dict[str, list[tuple[float, float, float]]] = {name: [] for name in made}
        for name, (address, _) in running.items():
            run(create(address, made[name].client))
            run(send(address, made[name].client, 2_000))
        own = psutil.Process()
        for _ in range(given.rounds):
            for name, (address, pid) in running.items():
                broker = psutil.Process(pid)
                before, own_before = sum(broker.cpu_times()[:2]), sum(own.cpu_times()[:2])
                began = time.perf_counter()
                run(send(address, made[name].client, given.messages))
                took_s = time.perf_counter() - began
                figures[name].append(
                    (
                        (sum(broker.cpu_times()[:2]) - before) / given.messages * 1e6,
                        (sum(own.cpu_times()[:2]) - own_before) / given.messages * 1e6,
                        given.messages / took_s,
                    )
                )
    base = statistics.median(each[0] for each in figures["open"])
    print(f"{'variant':28} {'broker us':>10} {'client us':>10} {'messages/s':>11} {'broker':>7}")
    for name, rows in figures.items():
        broker_us, client_us, rate = (
            statistics.median(column) for column in zip(*rows, strict=True)
        )
        print(
            f"{name:28} {broker_us:10.1f} {client_us:10.1f} {rate:11,.0f} {broker_us / base:7.2f}"
        )


if __name__ == "__main__":
    main()
