"""Opens a broker's accounts: the file, the first users, and the guard that follows them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from cometmq.broker.access.guard import AccessGuard
from cometmq.broker.access.processor import AccountProcessor
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState
from cometmq.broker.files.config_file import ConfigFile, load_config_file
from cometmq.core.access.accounts import Accounts
from cometmq.core.transaction.open_transactions import OpenHalves
from cometmq.errors import CodecError, ConfigError
from cometmq.net.server import Handler
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.wire.command.fastjson import loads_object

__all__ = ["guarded_handlers"]

ACCOUNTS_FILE: Final = "cometmqAccounts.json"


def guarded_handlers(
    state: BrokerState, disk: Disk, halves: OpenHalves, handlers: Mapping[int, Handler]
) -> dict[int, Handler]:
    """Return the processors and those of the accounts, each behind the check.  Blocks.

    Raises:
        ConfigError: a setting of the accounts is illegal, or there is no super user.
        StoreCorrupt, StoreError: the file cannot be read, or the first users cannot be written.
    """
    config = state.config
    folder = f"{config.store_path()}/config"
    make_durable_directory(disk, folder)
    path = f"{folder}/{ACCOUNTS_FILE}"
    accounts = load_config_file(disk, path, _decode) or Accounts()
    for user in _first_users(config):
        if user["username"] not in accounts.users:
            accounts.create_user({**user, "userType": "Super"}, by_super=True)
    if not any(user.is_super and user.is_enabled for user in accounts.users.values()):
        raise ConfigError(
            "authenticationEnabled=true, and no super user exists, so nobody could change anything:"
            ' set initAuthenticationUser={"username":"...","password":"..."} for the first start'
        )
    file = ConfigFile(
        disk,
        state.env.workers,
        path,
        lambda: accounts.revision,
        lambda: _snapshot(accounts),
        is_private=True,
    )
    file.save_now()
    guard = AccessGuard(
        accounts,
        config.broker_cluster_name,
        is_authorizing=config.authorization_enabled,
        unsigned=_codes("authenticationWhitelist", config.authentication_whitelist),
        unchecked=_codes("authorizationWhitelist", config.authorization_whitelist),
        halves=halves,
    )
    return guard.guarded({**handlers, **AccountProcessor(state, accounts, file).handlers()})


def _snapshot(accounts: Accounts) -> Any:
    data = accounts.to_json()
    return lambda: msgspec.json.encode(data)


def _decode(raw: bytes) -> Accounts:
    try:
        return Accounts.from_json(loads_object(raw, ACCOUNTS_FILE))
    except (ConfigError, AttributeError, TypeError) as error:
        raise CodecError(f"{ACCOUNTS_FILE}: {error}") from error


def _first_users(config: BrokerConfig) -> list[dict[str, str]]:
    users = []
    for key, text, name_key, secret_key in (
        ("initAuthenticationUser", config.init_authentication_user, "username", "password"),
        (
            "innerClientAuthenticationCredentials",
            config.inner_client_authentication_credentials,
            "accessKey",
            "secretKey",
        ),
    ):
        if text:
            name, secret = config.credentials_in(key, text, name_key, secret_key)
            users.append({"username": name, "password": secret})
    return users


def _codes(key: str, text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    illegal = [word for word in words if not word.isdecimal()]
    if illegal:
        raise ConfigError(f"{key} has {illegal[0]!r}, which is no request code")
    return frozenset(map(int, words))
