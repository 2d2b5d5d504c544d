"""An application of handlers: `App` runs them, from decorators, with signals and draining.

Built on the client's producer and push consumer, whose options it passes through.  What is new
here is values instead of bodies, the life of a program, statistics, and tests without a broker.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.app.app import App as App
    from cometmq.app.producing import TopicProducer as TopicProducer
    from cometmq.app.serializers import Avro as Avro
    from cometmq.app.serializers import Json as Json
    from cometmq.app.serializers import Protobuf as Protobuf
    from cometmq.app.serializers import SchemaError as SchemaError
    from cometmq.app.serializers import Serializer as Serializer
    from cometmq.app.stats import HandlerStats as HandlerStats
    from cometmq.app.trial import AppTrial as AppTrial

_HOMES: Final = {
    "App": "cometmq.app.app",
    "AppTrial": "cometmq.app.trial",
    "Avro": "cometmq.app.serializers",
    "HandlerStats": "cometmq.app.stats",
    "Json": "cometmq.app.serializers",
    "Protobuf": "cometmq.app.serializers",
    "SchemaError": "cometmq.app.serializers",
    "Serializer": "cometmq.app.serializers",
    "TopicProducer": "cometmq.app.producing",
}

__all__ = [
    "App",
    "AppTrial",
    "Avro",
    "HandlerStats",
    "Json",
    "Protobuf",
    "SchemaError",
    "Serializer",
    "TopicProducer",
]


def __getattr__(name: str) -> Any:
    """Import a public name from its module on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq.app' has no attribute {name!r}")
    return getattr(import_module(home), name)
