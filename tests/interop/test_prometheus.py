"""A real Prometheus reads a broker's page, and its alerts fire and end."""

import json
import re
import shutil
import socket
import subprocess
import urllib.request
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.interop.waiting import wait_until

from cometmq.model import MessageQueue, SubscriptionGroupConfig
from cometmq.model.message import Message
from cometmq.model.names import dlq_topic
from cometmq.sync import Admin, Producer
from cometmq.testing.cluster import threaded_cluster

ROOT = Path(__file__).resolve().parents[2]
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"


def quick(rules: str) -> str:
    """The rules with waits and windows of seconds instead of minutes."""
    rules = re.sub(r"for: \d+m", "for: 0s", rules)
    return re.sub(r"\[\d+m\]", "[4s]", rules).replace("> 300000", "> 500")


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """A server that reads the page five times a second; yields its address."""
    program = shutil.which("prometheus")
    if program is None:
        pytest.skip("prometheus is not installed (make peers)")
    (folder / "alerts.yml").write_text(quick(ALERTS.read_text()))
    (folder / "prometheus.yml").write_text(
        "global: { scrape_interval: 200ms, evaluation_interval: 200ms }\n"
        f"rule_files: ['{folder}/alerts.yml']\n"
        "scrape_configs:\n"
        "  - job_name: cometmq\n"
        f"    static_configs: [{{ targets: ['127.0.0.1:{target}'] }}]\n"
    )
    with socket.socket() as chosen:
        chosen.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{chosen.getsockname()[1]}"
    with (folder / "log").open("w") as log:
        server = subprocess.Popen(
            [
                program,
                f"--config.file={folder}/prometheus.yml",
                f"--storage.tsdb.path={folder}/data",
                f"--web.listen-address={address}",
            ],
            stdout=log,
            stderr=log,
        )
        try:
            yield address
        finally:
            server.terminate()
            server.wait(30)


def ask(address: str, path: str) -> Any:
    """The data of an answer of Prometheus' interface; None while it does not answer."""
    try:
        with urllib.request.urlopen(f"http://{address}/api/v1/{path}", timeout=10) as answer:
            return json.load(answer)["data"]
    except OSError:
        return None


def firing(address: str) -> set[str]:
    """The names of the alerts that fire."""
    alerts = (ask(address, "alerts") or {"alerts": []})["alerts"]
    return {alert["labels"]["alertname"] for alert in alerts if alert["state"] == "firing"}


@pytest.mark.full
def test_alerts_fire_and_end(tmp_path: Path) -> None:
    """A backlog and a dead letter; then the group has consumed, and the broker is gone."""
    settings = {"metricsExporterType": "PROM", "metricsPromExporterPort": 0}
    with ExitStack() as outer:
        with ExitStack() as inner:
            cluster = inner.enter_context(threaded_cluster(settings))
            port = cluster.standalone.broker.metrics_port
            address = outer.enter_context(prometheus(tmp_path, port))
            name_server = cluster.name_server_address
            admin = inner.enter_context(Admin(name_server=name_server))
            producer = inner.enter_context(Producer("watchers", name_server=name_server))
            admin.create_topic("Watched", queue_count=1)
            admin.create_group(SubscriptionGroupConfig("watched"))
            admin.create_topic(dlq_topic("watched"), queue_count=1)
            queue = MessageQueue("Watched", "broker-a", 0)
            admin.commit_offsets("watched", {queue: 0})

            def has(name: str) -> bool:
                data = ask(address, f"query?query={name}")
                return bool(data and data["result"])

            wait_until(lambda: has("rocketmq_send_to_dlq_messages_total"))
            assert ask(address, "targets")["activeTargets"][0]["lastError"] == ""
            producer.send(Message("Watched", b"waits"))
            wait_until(lambda: "CometmqConsumerBehind" in firing(address))
            producer.send(Message(dlq_topic("watched"), b"given up"))
            wait_until(lambda: "CometmqDeadLetters" in firing(address))
            admin.commit_offsets("watched", {queue: 1})
            ended = {"CometmqConsumerBehind", "CometmqDeadLetters"}
            wait_until(lambda: not firing(address) & ended)
            assert "CometmqBrokerDown" not in firing(address)
        wait_until(lambda: "CometmqBrokerDown" in firing(address))
