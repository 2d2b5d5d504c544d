"""The keys and TLS settings that all clients share, from arguments or from the environment.

A missing argument is taken from ``COMETMQ_ACCESS_KEY``, ``COMETMQ_SECRET_KEY``,
``COMETMQ_SECURITY_TOKEN``, ``COMETMQ_TLS``, ``COMETMQ_TLS_CA``, ``COMETMQ_TLS_CERT``,
``COMETMQ_TLS_KEY`` or ``COMETMQ_TLS_KEY_PASSWORD``.  No secret is logged.
"""

import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Literal, TypedDict

from cometmq.errors import ConfigError, ConfigTypeError
from cometmq.net.tls import Tls, TlsContext
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials

__all__ = ["OPEN", "Security", "SecurityOptions", "with_environment"]

_PREFIX: Final = "COMETMQ_"
_ON: Final = frozenset({"1", "true", "yes", "on", "verify"})
_OFF: Final = frozenset({"", "0", "false", "no", "off"})
_UNCHECKED: Final = {"no-hostname": (True, False), "insecure": (False, False)}


class SecurityOptions(TypedDict, total=False):
    """Keyword arguments of every client.

    ``access_key`` and ``secret_key`` sign each request (RocketMQ's ACL 1.0); ``security_token``
    goes with temporary keys.  ``tls`` is True for the system's authorities, a `Tls` for settings,
    False for plain connections whatever the environment says.
    """

    access_key: str | None
    secret_key: str | None
    security_token: str | None
    tls: Tls | bool | None


@dataclass(frozen=True, slots=True)
class Security:
    """Checked credentials and TLS context; both are None for an open cluster."""

    credentials: Credentials | None = None
    tls: TlsContext | None = None

    @property
    def prepare(self) -> Callable[[RemotingCommand], None] | None:
        """Signs a request before it is encoded; None if requests are not signed."""
        return self.credentials.sign_command if self.credentials is not None else None

    @classmethod
    def of(
        cls,
        access_key: str | None = None,
        secret_key: str | None = None,
        security_token: str | None = None,
        tls: Tls | bool | None = None,
    ) -> "Security":
        """The security of these arguments; the environment replaces those that are None.

        Raises:
            ConfigError: one of the two keys is missing, a file is unreadable, or a word is unknown.
        """
        options = SecurityOptions(
            access_key=access_key, secret_key=secret_key, security_token=security_token, tls=tls
        )
        completed = with_environment(options)
        access_key, secret_key = completed.get("access_key"), completed.get("secret_key")
        token, tls = completed.get("security_token"), completed.get("tls")
        for name, text in (
            ("access_key=", access_key),
            ("secret_key=", secret_key),
            ("security_token=", token),
        ):
            _check_text(name, text)
        credentials = None
        if access_key and secret_key:
            credentials = Credentials(access_key, secret_key, token or None)
        elif access_key or secret_key or token:
            missing, variable = (
                ("secret_key=", "SECRET_KEY") if access_key else ("access_key=", "ACCESS_KEY")
            )
            raise ConfigError(
                f"access_key= and secret_key= belong together: {missing} is missing; give it or "
                f"set {_PREFIX}{variable}"
            )
        if tls is True:
            tls = Tls()
        elif tls and not isinstance(tls, Tls):
            raise ConfigTypeError(
                f"tls is {tls!r:.100} ({type(tls).__name__}); give True, False or a Tls"
            )
        return cls(credentials, tls.context() if tls else None)


def _check_text(name: str, text: object) -> None:
    """Refuse keys that are not UTF-8 text; the error does not contain the key."""
    if text is None:
        return
    if not isinstance(text, str):
        raise ConfigTypeError(f"{name} is of type {type(text).__name__}; give a text")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ConfigError(
            f"{name} is not UTF-8 at character {error.start + 1}; give it as it was made"
        ) from None


OPEN: Final = Security()
"""For a cluster without authentication and TLS."""


def with_environment(options: SecurityOptions) -> SecurityOptions:
    """The options completed from the environment, for processes with another environment.

    Raises:
        ConfigError: ``COMETMQ_TLS`` is an unknown word.
    """
    names: tuple[Literal["access_key", "secret_key", "security_token"], ...]
    names = ("access_key", "secret_key", "security_token")
    completed = SecurityOptions()
    for name in names:
        value = options.get(name)
        completed[name] = value if value is not None else _variable(name.upper())
    tls = options.get("tls")
    completed["tls"] = tls if tls is not None else _tls_of_environment()
    return completed


def _variable(name: str) -> str | None:
    return os.environ.get(_PREFIX + name) or None


def _tls_of_environment() -> Tls | None:
    mode = (_variable("TLS") or "").lower()
    ca, cert = _variable("TLS_CA"), _variable("TLS_CERT")
    if mode in _OFF and (mode or not (ca or cert)):
        return None
    verify, check_hostname = _UNCHECKED.get(mode, (True, True))
    if mode not in _ON and mode not in _OFF and mode not in _UNCHECKED:
        raise ConfigError(
            f"{_PREFIX}TLS is {mode!r}; set 1, 0, no-hostname (any host of a trusted authority) "
            "or insecure (any certificate)"
        )
    return Tls(
        ca_file=ca,
        cert_file=cert,
        key_file=_variable("TLS_KEY"),
        key_password=_variable("TLS_KEY_PASSWORD"),
        verify=verify,
        check_hostname=check_hostname,
    )
