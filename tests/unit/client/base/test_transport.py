"""The pool of blocking connections."""

import socket

import pytest

from cometmq.client.base import transport
from cometmq.client.base.transport import BlockingIo
from cometmq.net.env import system_environment


def test_a_connection_the_server_closed_is_not_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """Found by interop: an Admin's first call after a name server's restart failed."""
    monkeypatch.setattr(transport, "CHECK_IDLE_AFTER_S", -1.0)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"
        io = BlockingIo(system_environment())
        first = io.take(address, 1_000)
        accepted, _ = listener.accept()
        io.give(first)
        assert io.take(address, 1_000) is first
        io.give(first)
        accepted.close()
        second = io.take(address, 1_000)
        assert second is not first
        assert first.is_closed
        assert not second.is_closed
        io.give(second)
        io.close()
