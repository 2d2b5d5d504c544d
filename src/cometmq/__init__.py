"""CometMQ: a broker, name server and client that speak RocketMQ's protocol and read its store.

The public names below are imported on first use, so that `import cometmq` costs next to nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.model.message import Message as Message
    from cometmq.model.queue import MessageQueue as MessageQueue

__all__ = ["Message", "MessageQueue", "__version__"]

__version__: Final = "0.1.0"

_HOMES: Final = {
    "Message": "cometmq.model.message",
    "MessageQueue": "cometmq.model.queue",
}


def __getattr__(name: str) -> Any:
    """Import a public name from its room on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq' has no attribute {name!r}")
    value = getattr(import_module(home), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
