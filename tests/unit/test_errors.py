"""The errors: the tree under CometError, and the built-in classes a Python person catches."""

import asyncio
import pickle

import pytest

from cometmq import errors
from cometmq.cli.serve.serve import serve_until_stopped
from cometmq.client.base.arguments import check_count, check_ms, checked_text
from cometmq.client.message.checks import check_is_message
from cometmq.errors import (
    CometError,
    ConfigError,
    ConfigTypeError,
    ConnectFailed,
    LocalProtocolError,
    MessageTypeError,
    RequestTimeout,
    TlsFailed,
)
from cometmq.model.message_checks import plain_bytes


@pytest.mark.parametrize(
    ("error", "builtin"),
    [
        (LocalProtocolError, ValueError),
        (MessageTypeError, TypeError),
        (ConfigError, ValueError),
        (ConfigTypeError, TypeError),
        (RequestTimeout, TimeoutError),
        (ConnectFailed, ConnectionError),
        (TlsFailed, ConnectionError),
    ],
)
def test_local_errors_are_also_of_the_built_in_class(
    error: type[CometError], builtin: type[Exception]
) -> None:
    """Both clauses catch it, and neither base eats the text, also after pickling."""
    raised = error("the text")
    assert isinstance(raised, CometError)
    assert isinstance(raised, builtin)
    copied = pickle.loads(pickle.dumps(raised))
    assert (type(copied), str(copied), copied.args) == (error, "the text", ("the text",))


def test_every_public_error_stems_from_the_root() -> None:
    """`except CometError` is enough for all of them."""
    for name in errors.__all__:
        value = getattr(errors, name)
        if isinstance(value, type) and issubclass(value, Exception):
            assert issubclass(value, CometError), name


def test_wrong_types_and_wrong_values_are_told_apart() -> None:
    """A wrong type raises a TypeError, a value out of range only a ValueError."""
    with pytest.raises(TypeError):
        check_count("retries", "3")
    with pytest.raises(ValueError, match="retries") as caught:
        check_count("retries", 0)
    assert not isinstance(caught.value, TypeError)
    with pytest.raises(TypeError):
        check_ms("timeout_ms", "soon")
    with pytest.raises(TypeError):
        checked_text("the group", 7)
    with pytest.raises(TypeError):
        check_is_message("a text")
    with pytest.raises(TypeError):
        plain_bytes("Orders", "a text")


def test_a_start_that_cannot_listen_keeps_its_own_error() -> None:
    """ConnectFailed is an OSError too, but no fault of the store's file system."""

    async def start() -> None:
        raise ConnectFailed("cannot listen on :10911")

    async def stop() -> None:
        pass

    with pytest.raises(ConnectFailed, match="cannot listen"):
        asyncio.run(serve_until_stopped(start, stop, str))
