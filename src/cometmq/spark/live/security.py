"""How sources and sinks of Spark join a secured cluster: options to arguments of clients and back.

Job: keys and TLS as options, which travel to the executors inside the readers and writers.  It must
not connect, and no secret may be in a repr or an error.

An executor may have another environment than the driver: `security_options_of` puts what the
driver's holds into the options.  Option names of secrets are such that Spark masks them where it
shows options (``spark.redaction.regex``).
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
    "accessKey": "The account, where the brokers ask for one.",
    "secretKey": "Its secret.",
    "securityToken": "A token beside the two, where there is one.",
    "tls": "`true`, `no-hostname` (any host of a trusted authority), `insecure` (any certificate),"
    " or `false`. Default `true` with one of the files below, else the worker's `COMETMQ_TLS`.",
    "tlsCaFile": "PEM file of the authorities to trust; the system's by default. These files lie"
    " under the same path on every node.",
    "tlsCertFile": "PEM file of our certificate, where servers ask for one.",
    "tlsKeyFile": "PEM file of its key, if that is not in the same file.",
    "tlsKeyPassword": "Of an encrypted key file.",
}
_MODES: Final = ("true", "no-hostname", "insecure", "false")
_TEXTS: Final[dict[Literal["access_key", "secret_key", "security_token"], str]] = {
    "access_key": "accessKey",
    "secret_key": "secretKey",
    "security_token": "securityToken",
}


@dataclass(frozen=True, slots=True)
class LiveSecurity:
    """Keys and TLS of one connection; what is None is looked up where the client is made."""

    access_key: str | None
    secret_key: str | None = field(repr=False)
    security_token: str | None = field(repr=False)
    tls: Tls | bool | None

    @classmethod
    def of(cls, values: OptionValues) -> LiveSecurity:
        """From options of a source or sink; ConfigError for half a pair or an unknown mode."""
        found = cls(
            values.text("accessKey"),
            values.text("secretKey"),
            values.text("securityToken"),
            _tls(values),
        )
        if found.secret_key is not None and found.access_key is None:
            raise ConfigError("option secretKey needs option accessKey: whose secret is it?")
        return found

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


def security_options_of(given: SecurityOptions) -> dict[str, str]:
    """A command's connection options, and the environment's, as options of the source and sink."""
    found = with_environment(given)
    options = {option: found.get(name) for name, option in _TEXTS.items()}
    tls = found.get("tls")
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
