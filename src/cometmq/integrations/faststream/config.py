"""The configuration that a broker shares with its routers, subscribers and publishers."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from faststream._internal.configs import BrokerConfig, UnderlyingDriverAnnotation
from faststream.exceptions import SetupError
from faststream.security import BaseSecurity, SASLPlaintext

from cometmq import Producer

__all__ = ["CometBrokerConfig", "client_security"]


def _driver_annotations() -> Mapping[Any, UnderlyingDriverAnnotation | Any]:
    # The annotations need the broker's class, which needs this module.
    from cometmq.integrations.faststream import annotations
    from cometmq.integrations.faststream.broker import CometBroker
    from cometmq.integrations.faststream.message import CometStreamMessage

    module = annotations.__name__
    return MappingProxyType(
        {
            driver: UnderlyingDriverAnnotation(
                type_hint=getattr(annotations, name), module=module, name=name
            )
            for driver, name in (
                (CometStreamMessage, "CometMessage"),
                (CometBroker, "CometBroker"),
                (Producer, "Producer"),
            )
        }
    )


@dataclass(kw_only=True)
class CometBrokerConfig(BrokerConfig):
    """FastStream's configuration, and how the client connects.

    ``client_options`` are the arguments that all clients share: name servers, keys, TLS.
    """

    client_options: dict[str, Any] = field(default_factory=dict)
    producer_options: dict[str, Any] = field(default_factory=dict)
    default_driver_annotations: Mapping[Any, UnderlyingDriverAnnotation | Any] = field(
        default_factory=_driver_annotations
    )

    @property
    def drain_timeout_ms(self) -> int:
        """How long a stop waits for running handlers; FastStream's None means for ever."""
        seconds = self.graceful_timeout
        return 2**31 - 1 if seconds is None else round(seconds * 1000)


def client_security(security: BaseSecurity | None) -> dict[str, Any]:
    """The client's arguments for a security object of FastStream.

    A user and a password are RocketMQ's access key and secret key.

    Raises:
        SetupError: the object asks for what the client does not have.
    """
    if security is None:
        return {}
    options: dict[str, Any] = {}
    if isinstance(security, SASLPlaintext):
        options = {"access_key": security.username, "secret_key": security.password}
    elif type(security) is not BaseSecurity:
        raise SetupError(
            f"security is {type(security).__name__}; give BaseSecurity(use_ssl=True) or "
            "SASLPlaintext(access key, secret key)"
        )
    if security.ssl_context is not None:
        raise SetupError(
            "security has an ssl_context, which the client does not take; give use_ssl=True and "
            "tls=cometmq.Tls(...) to the broker"
        )
    if security.use_ssl:
        options["tls"] = True
    return options
