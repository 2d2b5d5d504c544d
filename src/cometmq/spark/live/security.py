"""Keys and TLS settings as Spark options, and Spark options as client arguments.

The options travel to the executors inside the readers and writers.  An executor may have another
environment than the driver: `security_options_of` copies the driver's environment into options.
Spark masks the option names of secrets where it shows options (``spark.redaction.regex``); no
repr and no error text contains a secret.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from cometmq.client.base.security import SecurityOptions, with_environment
from cometmq.errors import ConfigError
from cometmq.net.tls import Tls

if TYPE_CHECKING:
    from cometmq.spark.base.option_names import OptionValues

__all__ = ["SECURITY_OPTIONS", "LiveSecurity", "security_options_of"]

SECURITY_OPTIONS: Final[dict[str, str]] = {
    "accessKey": "The account, if the brokers require one.",
    "secretKey": "Its secret.",
    "securityToken": "A token beside the two, if there is one.",
    "tls": "`true`, `no-hostname` (any host of a trusted authority), `insecure` (any certificate),"
    " or `false`. Default: `true` with one of the files below, else the worker's `COMETMQ_TLS`.",
    "tlsCaFile": "PEM file of the trusted authorities; default the system's. These files have"
    " the same path on every node.",
    "tlsCertFile": "PEM file of our certificate, if servers require one.",
    "tlsKeyFile": "PEM file of its key, if it is not in the same file.",
    "tlsKeyPassword": "The password of an encrypted key file.",
}
_MODES: Final = ("true", "no-hostname", "insecure", "false")
_TEXTS: Final[dict[Literal["access_key", "secret_key", "security_token"], str]] = {
    "access_key": "accessKey",
    "secret_key": "secretKey",
    "security_token": "securityToken",
}


@dataclass(frozen=True, slots=True)
class LiveSecurity:
    """Keys and TLS of one connection; the client looks up the values that are None."""

    access_key: str | None
    secret_key: str | None = field(repr=False)
    security_token: str | None = field(repr=False)
    tls: Tls | bool | None

    @classmethod
    def of(cls, values: OptionValues) -> LiveSecurity:
        """From the options of a source or sink.

        Raises:
            ConfigError: a secret without its account, or an unknown TLS mode.
        """
        security = cls(
            values.text("accessKey"),
            values.text("secretKey"),
            values.text("securityToken"),
            _tls(values),
        )
        if security.secret_key is not None and security.access_key is None:
            raise ConfigError("option secretKey needs option accessKey: whose secret is it?")
        return security

    def arguments(self) -> SecurityOptions:
        """Keyword arguments of a client."""
        return SecurityOptions(
            access_key=self.access_key,
            secret_key=self.secret_key,
            security_token=self.security_token,
            tls=self.tls,
        )


def _tls(values: OptionValues) -> Tls | bool | None:
    mode = values.text("tls")
    files = [values.text(name) for name in ("tlsCaFile", "tlsCertFile", "tlsKeyFile")]
    if mode is None and not any(files):
        return None
    mode = "true" if mode is None else mode.lower()
    if mode not in _MODES:
        raise ConfigError(f"option tls is {mode!r}: expected {', '.join(_MODES)}")
    if mode == "false":
        return False
    return Tls(
        ca_file=files[0],
        cert_file=files[1],
        key_file=files[2],
        key_password=values.text("tlsKeyPassword"),
        verify=mode != "insecure",
        check_hostname=mode == "true",
    )


def security_options_of(arguments: SecurityOptions) -> dict[str, str]:
    """The options of source and sink for a command's security arguments and the environment."""
    settings = with_environment(arguments)
    options = {option: settings.get(name) for name, option in _TEXTS.items()}
    tls = settings.get("tls")
    if tls is not None:
        options |= _tls_options(tls)
    return {name: value for name, value in options.items() if value}


def _tls_options(tls: Tls | bool) -> dict[str, str | None]:
    if isinstance(tls, bool):
        return {"tls": "true" if tls else "false"}
    mode = "true" if tls.check_hostname else "no-hostname"
    return {
        "tls": mode if tls.verify else "insecure",
        "tlsCaFile": tls.ca_file,
        "tlsCertFile": tls.cert_file,
        "tlsKeyFile": tls.key_file,
        "tlsKeyPassword": tls.key_password,
    }
