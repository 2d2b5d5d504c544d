"""The dashboard for Grafana asks for series and labels that a broker's page has."""

import json
import re
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from cometmq.model.message import Message
from cometmq.sync import Admin, Producer, PullConsumer
from cometmq.testing.cluster import threaded_cluster

PATH = Path(__file__).resolve().parents[4] / "deploy" / "grafana" / "brokers.json"
DASHBOARD: dict[str, Any] = json.loads(PATH.read_text("utf-8"))
SETTINGS = {
    "metricsExporterType": "PROM",
    "metricsPromExporterPort": 0,
    "brokerRole": "ASYNC_MASTER",
    "authenticationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": "secret-of-root"}),
}
KEYS: dict[str, Any] = {"access_key": "root", "secret_key": "secret-of-root"}
_SERIES = re.compile(r"\b((?:rocketmq|cometmq)_\w+)(?:\{([^}]*)\})?")
_LABEL = re.compile(r"(\w+)=~?\"")


@pytest.fixture(scope="module")
def series() -> dict[str, set[str]]:
    """The names on the page of a broker that has done a little of everything -> their labels."""
    with threaded_cluster(SETTINGS) as cluster:
        address = cluster.name_server_address
        with Admin(name_server=address, **KEYS) as admin:
            admin.create_topic("Orders", queue_count=1)
        with (
            Producer("p", name_server=address, **KEYS) as producer,
            PullConsumer(
                "g", {"Orders": "*"}, name_server=address, consume_from="first", **KEYS
            ) as consumer,
        ):
            producer.send(Message("Orders", b"x"))
            while not consumer.poll(1000):
                pass
            port = cluster.standalone.broker.metrics_port
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as page:
                text = page.read().decode()
    names: dict[str, set[str]] = {}
    for line in text.splitlines():
        if not line.startswith("#"):
            name, _, labels = line.partition("{")
            names.setdefault(name, set()).update(_LABEL.findall(labels))
    return names


def expressions() -> list[tuple[str, str, str]]:
    """(title, expression, legend) of every target, and the queries of the variables."""
    found = [
        (panel["title"], target["expr"], target["legendFormat"])
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    ]
    variables = DASHBOARD["templating"]["list"]
    return found + [
        (each["name"], each["query"], "") for each in variables if each["type"] == "query"
    ]


@pytest.mark.parametrize(("title", "expression", "legend"), expressions())
def test_series_and_labels_exist(
    series: dict[str, set[str]], title: str, expression: str, legend: str
) -> None:
    """Of each expression, its filters, its grouping and its legend."""
    asked = _SERIES.findall(expression)
    assert asked, title
    for name, filters in asked:
        assert name in series, f"{title}: {name} is not on the page"
        wanted = set(_LABEL.findall(filters))
        for grouping in re.findall(r"by \(([^)]*)\)", expression):
            wanted |= {label.strip() for label in grouping.split(",")}
        wanted |= set(re.findall(r"\{\{(\w+)\}\}", legend))
        assert wanted <= series[name], f"{title}: {name} lacks {wanted - series[name]}"


def test_the_file_is_a_dashboard() -> None:
    """With ids that differ, and panels that do not overlap."""
    assert DASHBOARD["schemaVersion"] >= 39
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(set(ids)) == len(ids)
    spots = {(panel["gridPos"]["x"], panel["gridPos"]["y"]) for panel in DASHBOARD["panels"]}
    assert len(spots) == len(ids)
    assert {panel["type"] for panel in DASHBOARD["panels"]} == {"timeseries"}
