"""Signature of a request by access key and secret (wire.md 5.8).

Signed are the values of all ext fields but ``Signature``, in the order of their names, without
names or separators, and then the raw body; HMAC-SHA1 of that with the secret, in base64.
Java up to 4.9.3 does not sign ``_UNIQUE_KEY_QUERY``, so a broker accepts it either way.
"""

import base64
import hashlib
import hmac
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.frame.framing import FrameReader
from cometmq.wire.header.fast_encode import PullRequestTemplate, SendRequestTemplate

__all__ = [
    "SIGNATURE_FIELD",
    "UNIQUE_KEY_QUERY_FIELD",
    "Credentials",
    "SignedPullTemplate",
    "SignedSendTemplate",
    "is_signature_right",
    "sign",
]

ACCESS_KEY_FIELD: Final = "AccessKey"
SECURITY_TOKEN_FIELD: Final = "SecurityToken"  # noqa: S105 - a name, not a token
SIGNATURE_FIELD: Final = "Signature"
UNIQUE_KEY_QUERY_FIELD: Final = "_UNIQUE_KEY_QUERY"


def _utf16_order(name: str) -> bytes:
    # Java sorts by UTF-16 units, which differs from code points beyond the basic plane.
    return name.encode("utf-16-be", "surrogatepass")


def sign(
    ext_fields: Mapping[str, str], body: bytes, secret: str, *, without: Collection[str] = ()
) -> str:
    """Return the signature of a request; ``without`` names further fields to leave out."""
    content = "".join(
        [
            ext_fields[name]
            for name in sorted(ext_fields, key=_utf16_order)
            if name != SIGNATURE_FIELD and name not in without
        ]
    )
    # SHA-1 is the protocol's choice; as a keyed hash it still holds.
    digest = hmac.new(secret.encode(), content.encode() + body, hashlib.sha1).digest()
    return base64.b64encode(digest).decode()


def is_signature_right(ext_fields: Mapping[str, str], body: bytes, secret: str) -> bool:
    """Whether the request's signature fits, with or without ``_UNIQUE_KEY_QUERY``."""
    given = ext_fields.get(SIGNATURE_FIELD, "").encode()
    full = sign(ext_fields, body, secret)
    if hmac.compare_digest(given, full.encode()):
        return True
    old = sign(ext_fields, body, secret, without=(UNIQUE_KEY_QUERY_FIELD,))
    return hmac.compare_digest(given, old.encode())


@dataclass(frozen=True, slots=True)
class Credentials:
    """Who we are: the key that travels, the secret that does not, and a token where one is asked.

    Source: ``AclClientRPCHook`` and ``SessionCredentials`` of RocketMQ 5.4.0.
    """

    access_key: str
    secret_key: str = field(repr=False)
    security_token: str | None = field(default=None, repr=False)

    def sign_command(self, command: RemotingCommand) -> None:
        """Add key, token and signature to a request; a request sent again is signed again."""
        ext = dict(command.ext_fields)
        ext[ACCESS_KEY_FIELD] = self.access_key
        if self.security_token is not None:
            ext[SECURITY_TOKEN_FIELD] = self.security_token
        ext[SIGNATURE_FIELD] = sign(ext, command.body, self.secret_key)
        command.ext_fields = ext

    def sign_frame(self, frame: bytes) -> bytes:
        """The same for a request that is a frame already."""
        (command,) = FrameReader().receive(frame)
        self.sign_command(command)
        return encode_command(command)


class SignedSendTemplate(SendRequestTemplate):
    """Sends with a signature; the secured way costs a decoding, the open one nothing."""

    __slots__ = ("_credentials",)

    def __init__(self, credentials: Credentials, *names: Any, **more: Any) -> None:
        super().__init__(*names, **more)
        self._credentials = credentials

    def encode(self, *values: Any, **more: Any) -> bytes:
        """Return the signed frame of one send; arguments as for the plain one."""
        return self._credentials.sign_frame(super().encode(*values, **more))


class SignedPullTemplate(PullRequestTemplate):
    """Pulls with a signature."""

    __slots__ = ("_credentials",)

    def __init__(self, credentials: Credentials, *names: Any, **more: Any) -> None:
        super().__init__(*names, **more)
        self._credentials = credentials

    def encode(self, *values: Any, **more: Any) -> bytes:
        """Return the signed frame of one pull; arguments as for the plain one."""
        return self._credentials.sign_frame(super().encode(*values, **more))
