"""Handles each message once: a handler with claims on its keys, or in the user's transaction.

- `idempotent` wraps a handler: a table of claims lets one handler have a key, and acknowledges what
  is done at once.  Its stores are `SqlClaims` and `RedisClaims`.
- `exactly_once` also commits the key and the handler's effects in one SQL transaction.

The names are imported on first use: Redis alone needs no SQLAlchemy.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from cometmq.patterns.idempotent.fence import Fence as Fence
    from cometmq.patterns.idempotent.handler import idempotent as idempotent
    from cometmq.patterns.idempotent.keys import by_keys as by_keys
    from cometmq.patterns.idempotent.keys import by_message_id as by_message_id
    from cometmq.patterns.idempotent.redis import RedisClaims as RedisClaims
    from cometmq.patterns.idempotent.sql import SqlClaims as SqlClaims
    from cometmq.patterns.idempotent.steps import async_step as async_step
    from cometmq.patterns.idempotent.steps import step as step
    from cometmq.patterns.idempotent.transaction import exactly_once as exactly_once
    from cometmq.patterns.idempotent.transaction import is_first as is_first

__all__ = [
    "Fence",
    "RedisClaims",
    "SqlClaims",
    "async_step",
    "by_keys",
    "by_message_id",
    "exactly_once",
    "idempotent",
    "is_first",
    "step",
]

_HOMES: Final = {
    "Fence": "fence",
    "RedisClaims": "redis",
    "SqlClaims": "sql",
    "async_step": "steps",
    "by_keys": "keys",
    "by_message_id": "keys",
    "exactly_once": "transaction",
    "idempotent": "handler",
    "is_first": "transaction",
    "step": "steps",
}


def __getattr__(name: str) -> Any:
    """Import a public name on first use (PEP 562)."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'cometmq.patterns.idempotent' has no attribute {name!r}")
    return getattr(import_module(f"cometmq.patterns.idempotent.{home}"), name)
