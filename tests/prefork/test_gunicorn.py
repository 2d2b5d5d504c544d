"""gunicorn with a preloaded application: a producer made before the fork serves every worker."""

import http.client
import json
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cometmq.testing.cluster import EmbeddedCluster

pytest.importorskip("gunicorn", reason="gunicorn is not installed: part of the group 'test'")
pytestmark = [
    pytest.mark.timeout(240),
    pytest.mark.processes,
    pytest.mark.skipif(sys.platform == "win32", reason="nothing forks on this platform"),
]

PAIRS = 6
APPLICATION = """
import json, multiprocessing, os
import cometmq.sync
from cometmq import Message

producer = cometmq.sync.Producer("web")
producer.start()
producer.send(Message("Requests", b"parent before"))
# This starts the background thread, which no child inherits.
producer.send_nowait(Message("Requests", b"parent in the background")).result(20)
parent = producer.client_id
both = multiprocessing.Barrier(2)


def application(environ, start_response):
    both.wait(20)  # so that two requests are always served by two workers
    path = environ["PATH_INFO"]
    result = producer.send(Message("Requests", path.encode()))
    background = producer.send_nowait(Message("Requests", f"{path}/background".encode()))
    body = json.dumps({
        "pid": os.getpid(),
        "parent": parent,
        "client": producer.client_id,
        "ids": [result.message_id, background.result(20).message_id],
        "status": result.status.name,
    }).encode()
    start_response("200 OK", [("Content-Length", str(len(body)))])
    return [body]
"""
SETTINGS = """
bind = "127.0.0.1:0"
workers = 2
worker_class = "sync"
preload_app = True
graceful_timeout = 20


def worker_exit(server, worker):
    from application import producer

    producer.shutdown()


def on_exit(server):
    from application import Message, producer

    producer.send(Message("Requests", b"parent after"))
    producer.shutdown()
"""


def get(port: int, path: str) -> dict[str, Any]:
    """Send one request on its own connection and return the answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        response = connection.getresponse()
        text = response.read()
        assert response.status == 200, text
        answer: dict[str, Any] = json.loads(text)
        return answer
    finally:
        connection.close()


def test_workers_send_with_the_producer_they_inherited(
    serve: Callable[..., Any],
    bodies_of: Callable[[str, int], list[str]],
    cluster: EmbeddedCluster,
    tmp_path: Path,
) -> None:
    """Each worker has its own client and message ids, sends once, and ends cleanly."""
    (tmp_path / "application.py").write_text(APPLICATION)
    (tmp_path / "gunicorn.conf.py").write_text(SETTINGS)
    with serve("gunicorn", "application:application") as server, ThreadPoolExecutor(2) as pool:
        port = int(server.wait_for(r"Listening at: http://127\.0\.0\.1:(\d+)")[1])
        answers: list[dict[str, Any]] = []
        for number in range(PAIRS):
            pair = [pool.submit(get, port, f"/{number}/{side}") for side in "ab"]
            answers += [future.result() for future in pair]
        online = cluster.standalone.broker.state.producers.get("web")
        assert online is not None
        registered = {member.client_id for member in list(online.values())}
        log = server.end()

    assert "Traceback" not in log
    (parent,) = {answer["parent"] for answer in answers}
    workers = {(answer["pid"], answer["client"]) for answer in answers}
    assert len(workers) == len({pid for pid, _ in workers}) == 2
    clients = {client for _, client in workers}
    assert parent not in clients
    # Each process has told the broker of itself, under its own id.
    assert registered == {parent} | clients
    assert {answer["status"] for answer in answers} == {"SEND_OK"}
    ids = [message_id for answer in answers for message_id in answer["ids"]]
    assert len(set(ids)) == len(ids) == 4 * PAIRS

    paths = [f"/{number}/{side}" for number in range(PAIRS) for side in "ab"]
    expected = paths + [f"{path}/background" for path in paths]
    expected += ["parent before", "parent in the background", "parent after"]
    assert bodies_of("Requests", len(expected)) == sorted(expected)
    # All three have signed off.
    assert cluster.standalone.broker.state.producers.get("web") is None
