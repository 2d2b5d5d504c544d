"""A name server's pages over HTTP."""

import asyncio
import urllib.request

import pytest

from cometmq.errors import ConfigError
from cometmq.namesrv import NameServer
from cometmq.namesrv.config import load_name_server_config
from cometmq.net.env import system_environment
from cometmq.net.loop import run
from cometmq.store.base.disk import RealDisk


def server_of(tmp_path: object, **settings: object) -> NameServer:
    """A name server on free ports."""
    given = {
        "listenPort": 0,
        "bindAddress": "127.0.0.1",
        "kvConfigPath": f"{tmp_path}/kv.json",
        "metricsExporterType": "PROM",
        "metricsPromExporterPort": 0,
        **settings,
    }
    config = load_name_server_config(overrides=given).config
    return NameServer(config, system_environment(), RealDisk())


def fetch(port: int, path: str) -> str:
    """The content of a page."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as answer:
        content: bytes = answer.read()
    return content.decode()


def test_pages(tmp_path: object) -> None:
    """Counts of what is registered, how late the loop is, and health."""

    async def story() -> tuple[str, str]:
        server = server_of(tmp_path, metricsLabel="room:cellar")
        await server.start()
        try:
            port = server.metrics_port
            return (
                await asyncio.to_thread(fetch, port, "/metrics"),
                await asyncio.to_thread(fetch, port, "/health/ready"),
            )
        finally:
            await server.stop()

    text, health = run(story())
    assert 'cometmq_routed_topics{node_type="nameserver",room="cellar"} 0\n' in text
    assert "cometmq_event_loop_lag_seconds_count" in text
    assert health == "ok\n"


def test_a_label_that_is_none_stops_the_start(tmp_path: object) -> None:
    """The error names the setting."""
    server = server_of(tmp_path, metricsLabel="room")
    with pytest.raises(ConfigError, match="metricsLabel=room"):
        run(server.start())
