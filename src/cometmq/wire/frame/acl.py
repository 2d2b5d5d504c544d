"""Signature of a request by access key and secret (docs/internals/protocol.md#signatures).

The signature is the base64 of an HMAC-SHA1 with the secret. It covers the values of all ext fields
except ``Signature``, in the order of their names and without separators, then the raw body. Java up
to 4.9.3 leaves ``_UNIQUE_KEY_QUERY`` out, so a broker accepts both.
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
    signature = ext_fields.get(SIGNATURE_FIELD, "").encode()
    full = sign(ext_fields, body, secret)
    if hmac.compare_digest(signature, full.encode()):
        return True
    old = sign(ext_fields, body, secret, without=(UNIQUE_KEY_QUERY_FIELD,))
    return hmac.compare_digest(signature, old.encode())


@dataclass(frozen=True, slots=True)
class Credentials:
    """The account of a client: a key that travels, a secret that does not, an optional token.

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
        """Return the signed frame of a request that is encoded already."""
        (command,) = FrameReader().receive(frame)
        self.sign_command(command)
        return encode_command(command)


class SignedSendTemplate(SendRequestTemplate):
    """Writes sends with a signature; signing decodes the frame, and unsigned sends do not pay."""

    __slots__ = ("_credentials",)

    def __init__(self, credentials: Credentials, *names: Any, **options: Any) -> None:
        super().__init__(*names, **options)
        self._credentials = credentials

    def encode(self, *values: Any, **options: Any) -> bytes:
        """Return the signed frame of one send; arguments as for the plain one."""
        return self._credentials.sign_frame(super().encode(*values, **options))


class SignedPullTemplate(PullRequestTemplate):
    """Writes pulls with a signature."""

    __slots__ = ("_credentials",)

    def __init__(self, credentials: Credentials, *names: Any, **options: Any) -> None:
        super().__init__(*names, **options)
        self._credentials = credentials

    def encode(self, *values: Any, **options: Any) -> bytes:
        """Return the signed frame of one pull; arguments as for the plain one."""
        return self._credentials.sign_frame(super().encode(*values, **options))
