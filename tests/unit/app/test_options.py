"""The options that an App passes through are those of the client's classes."""

import dataclasses
import inspect

from cometmq import Message, PushConsumer
from cometmq.app.options import AppConnection, ConsumerOptions, ProducerOptions, ValueFields
from cometmq.client.base.options import ClientOptions
from cometmq.client.base.security import SecurityOptions
from cometmq.client.producer.settings import ProducerSettings

CONNECTION = set(AppConnection.__annotations__)


def test_connection() -> None:
    """What every client takes, and every key of its security."""
    own = set(inspect.signature(ClientOptions.of).parameters) - {
        "name_server",
        "request_timeout_ms",
        "security",
    }
    assert own | set(SecurityOptions.__annotations__) == CONNECTION


def test_consumer() -> None:
    """All arguments of `PushConsumer`, but those that the App itself sets."""
    set_by_app = {
        "group",
        "subscriptions",
        "handler",
        "batch_count_max",
        "name_server",
        "common",
    }
    theirs = set(inspect.signature(PushConsumer).parameters) - set_by_app - CONNECTION
    assert set(ConsumerOptions.__annotations__) == theirs


def test_producer() -> None:
    """All fields of a producer's settings, but those of the connection."""
    theirs = {field.name for field in dataclasses.fields(ProducerSettings)}
    assert set(ProducerOptions.__annotations__) == theirs - CONNECTION - {"name_server"}


def test_message() -> None:
    """All fields of a message, but topic and body."""
    theirs = {field.name for field in dataclasses.fields(Message)}
    assert set(ValueFields.__annotations__) == theirs - {"topic", "body"}
