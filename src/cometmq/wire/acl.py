"""Signature of a request by access key and secret (wire.md 5.8).

Signed are the values of all ext fields but ``Signature``, in the order of their names, without
names or separators, and then the raw body; HMAC-SHA1 of that with the secret, in base64.
Java up to 4.9.3 does not sign ``_UNIQUE_KEY_QUERY``, so a broker accepts it either way.
"""

import base64
import hashlib
import hmac
from collections.abc import Collection, Mapping
from typing import Final

__all__ = ["SIGNATURE_FIELD", "UNIQUE_KEY_QUERY_FIELD", "is_signature_right", "sign"]

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
