"""The compose files: servers, console, Prometheus and Grafana, which nobody has run here."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from cometmq.broker.base.config import effective_keys, load_config
from cometmq.cli.main import COMMANDS

DEPLOY = Path(__file__).resolve().parents[2] / "deploy"
WHOLE = DEPLOY / "compose.yaml"


def load(path: Path) -> dict[str, Any]:
    """A YAML file with anchors and merges."""
    loaded: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))
    return loaded


@pytest.fixture(scope="module")
def services() -> dict[str, dict[str, Any]]:
    """The services of deploy/compose.yaml with those of the files that it includes, merged."""
    found: dict[str, dict[str, Any]] = {}
    for entry in load(WHOLE)["include"]:
        for name in entry["path"]:
            for service, parts in load(DEPLOY / name)["services"].items():
                found.setdefault(service, {}).update(parts)
    for service, parts in load(WHOLE)["services"].items():
        found.setdefault(service, {}).update(parts)
    return found


def test_everything_is_there(services: dict[str, dict[str, Any]]) -> None:
    """Three brokers, etcd, controllers, name server, console, Prometheus and Grafana."""
    assert {"broker1", "broker2", "broker3", "console", "grafana", "names", "prometheus"} <= set(
        services
    )
    assert sum(name.startswith("etcd") for name in services) == 3
    assert sum(name.startswith("controller") for name in services) >= 1
    assert all("image" in parts for parts in services.values())


def test_our_servers_run_commands_and_settings_that_exist(
    services: dict[str, dict[str, Any]],
) -> None:
    """The command lines, and the variables that brokers read."""
    kinds = []
    for parts in services.values():
        words = shlex.split(parts.get("command", ""))
        if words[:1] == ["cometmq"]:
            assert words[1] in COMMANDS
            kinds.append(words[1])
        variables = {
            name: value
            for name, value in parts.get("environment", {}).items()
            if name.startswith("COMETMQ_BROKER_")
        }
        if variables:
            load_config(environment=variables)
        if words[1:2] == ["broker"]:
            keys = {word.partition("=")[0] for word in words if "=" in word}
            assert keys <= set(effective_keys())
            assert variables["COMETMQ_BROKER_METRICS_EXPORTER_TYPE"] == "PROM"
    assert kinds.count("broker") == 3
    assert kinds.count("console") == 1


def test_only_this_machine_reaches_the_pages(services: dict[str, dict[str, Any]]) -> None:
    """Published ports are those of 127.0.0.1: brokers here check nobody."""
    ports = [port for parts in services.values() for port in parts.get("ports", ())]
    assert len(ports) >= 3
    assert all(str(port).startswith("127.0.0.1:") for port in ports)


def test_mounted_files_exist(services: dict[str, dict[str, Any]]) -> None:
    """Each file that a container is given is in deploy/."""
    for name in ("prometheus", "grafana"):
        for volume in services[name]["volumes"]:
            source = volume.partition(":")[0]
            assert (DEPLOY / source).exists(), source


def test_prometheus_scrapes_the_servers(services: dict[str, dict[str, Any]]) -> None:
    """Every broker and name server is a target, under the name that the alerts expect."""
    settings = load(DEPLOY / "monitoring" / "prometheus.yml")
    (job,) = settings["scrape_configs"]
    assert job["job_name"] == "cometmq"
    targets = {t.partition(":")[0] for entry in job["static_configs"] for t in entry["targets"]}
    assert targets <= set(services)
    assert {"broker1", "broker2", "broker3"} <= targets
    for path in sorted((DEPLOY / "monitoring" / "grafana").rglob("*.yaml")):
        assert load(path)["apiVersion"] == 1
