"""The App without asyncio, and the App in the test kit."""

import asyncio
import inspect
import threading
from collections.abc import Iterator

import pytest
from tests.unit.client.waiting import until

import cometmq
import cometmq.sync
from cometmq.errors import ClientClosed
from cometmq.testing import EmbeddedCluster, embedded_app, threaded_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    with threaded_cluster() as running:
        yield running


def test_both_faces_take_the_same_arguments() -> None:
    """The constructor, and every method that both have."""
    ours, theirs = cometmq.App, cometmq.sync.App
    for method in ("__init__", "start", "shutdown", "send", "request"):
        left, right = (inspect.signature(getattr(face, method)) for face in (ours, theirs))
        assert left.parameters == right.parameters, method
    own = {name for name in dir(theirs("g")) if not name.startswith("_")} - {"asyncio"}
    assert own <= {name for name in dir(ours("g")) if not name.startswith("_")}


def test_a_plain_program(cluster: EmbeddedCluster) -> None:
    """Handlers and hooks send by blocking calls; the App starts again after its end."""
    app = cometmq.sync.App("g", name_server=cluster.name_server_address)
    done = threading.Event()
    numbers: list[int] = []

    @app.on_startup
    def begin() -> None:
        app.send("first", 1)

    @app.consumer("first", consume_from="first")
    def relay(number: int) -> None:
        app.send("second", number + 1)

    @app.consumer("second", group="h", consume_from="first")
    def finish(number: int) -> None:
        numbers.append(number)
        done.set()

    @app.consumer("price", group="p", reply=True, consume_from="first")
    def price(number: int) -> int:
        return number * 10

    for _ in range(2):
        done.clear()
        with app:
            assert done.wait(20)
            assert app.request("price", 4, returns=int, timeout_ms=20_000) == 40
    assert numbers == [2, 2]
    with pytest.raises(ClientClosed, match="does not run"):
        app.send("first", 1)
    app.shutdown()


def test_a_blocking_call_on_the_loop_is_refused(cluster: EmbeddedCluster) -> None:
    """It would wait for itself."""
    app = cometmq.sync.App("g", name_server=cluster.name_server_address)

    async def send_wrongly() -> None:
        app.send("first", 1)

    app.on_startup(send_wrongly)
    with pytest.raises(ClientClosed, match="would wait for itself"):
        app.start()


def test_an_app_with_a_cluster_of_its_own() -> None:
    """`embedded_app` of the test kit."""
    app = cometmq.App("g", name_server="127.0.0.1:1")
    bodies: list[str] = []

    @app.consumer("t", consume_from="first")
    async def take(body: str) -> None:
        bodies.append(body)

    async def run() -> None:
        async with embedded_app(app) as cluster:
            assert cluster.name_server_address
            await app.send("t", "hello")
            await until(lambda: bodies == ["hello"])
        assert not app.is_running

    asyncio.run(run())
