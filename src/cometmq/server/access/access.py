"""The access control of one process: opens its accounts, guards its processors, follows its file.

The accounts of ACL 2.0 are a file beside the server's other files, which changes by requests; those
of ACL 1.0 are `plain_acl.yml` and the files of the folder `acl` beside it, which an operator
changes.  Files that cannot be read leave the accounts in force; the log says so once.

Source of the files of ACL 1.0: PlainPermissionManager and AclFileWatchService of RocketMQ 4.9.8.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from cometmq.core.access.accounts import Accounts, User
from cometmq.core.access.plain import PlainAccounts
from cometmq.errors import CodecError, CometError, ConfigError
from cometmq.extras import require
from cometmq.net.env import Environment
from cometmq.net.server import Handler
from cometmq.server.access.guard import AccessGuard, AccessRules, AccountRules, PlainRules
from cometmq.server.access.needs import Needs
from cometmq.server.access.processor import AccountProcessor
from cometmq.server.access.settings import AccessSettings
from cometmq.server.config_file import ConfigFile, Journal, load_config_file
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.wire.command.fastjson import loads_object
from cometmq.wire.frame.acl import Credentials

__all__ = ["ACCOUNTS_FILE", "Access", "read_plain_accounts"]

log = logging.getLogger("cometmq.access")

ACCOUNTS_FILE: Final = "cometmqAccounts.json"
RELOAD_INTERVAL_S: Final = 1.0
"""How often the files of ACL 1.0 are looked at; RocketMQ does it as often as certificates."""


class Access:
    """What decides about requests to one process; `open`, `follow` and `stop`, each once.

    Args:
        settings: complete ones.
        inner: an account for the process itself, which is in no file; None for none.
    """

    def __init__(self, settings: AccessSettings, inner: Credentials | None = None) -> None:
        self._settings = settings
        self._inner: User | None = None
        if inner is not None:
            self._inner = User(inner.access_key, inner.secret_key, is_super=True)
        self._rules: AccessRules | None = None
        self._processors: dict[int, Handler] = {}
        self.accounts: Accounts | None = None
        """The accounts of ACL 2.0, once open; None for those of ACL 1.0."""
        self.file: ConfigFile | None = None
        """Their file; None where they have none."""
        self._watch: _PlainFiles | None = None
        self._waiting: list[Callable[[], None]] = []

    def when_open(self, then: Callable[[], None]) -> None:
        """Call `then` when the accounts are there."""
        if self._rules is not None:
            then()
        else:
            self._waiting.append(then)

    def open(
        self,
        env: Environment,
        disk: Disk | None = None,
        folder: str = "",
        journal: Journal | None = None,
    ) -> None:
        """Load the accounts, and call those that wait for them; blocks.

        Args:
            disk: where the accounts of ACL 2.0 are kept; None for those of the settings alone.
            folder: for their file.
            journal: takes their changes to other replicas.

        Raises:
            ConfigError: a setting is illegal, there is no super user, or a file of ACL 1.0 cannot
                be read.
            StoreCorrupt, StoreError: the file of ACL 2.0 cannot be read or written.
        """
        self._rules = self._open(env, disk, folder, journal)
        waiting, self._waiting = self._waiting, []
        for then in waiting:
            then()

    def _open(
        self, env: Environment, disk: Disk | None, folder: str, journal: Journal | None
    ) -> AccessRules:
        settings = self._settings
        if settings.acl_enable:
            require("acl", "aclEnable=true")
            self._watch = _PlainFiles(settings.plain_acl_file, env)
            credentials = settings.credentials("innerClientAuthenticationCredentials")
            if credentials is not None and self._inner is None:
                self._inner = User(*credentials, is_super=True)
            return self._watch.rules
        accounts, file = Accounts(), None
        if disk is not None:
            make_durable_directory(disk, folder)
            path = f"{folder}/{ACCOUNTS_FILE}"
            accounts = load_config_file(disk, path, _decode) or accounts
            file = _file_of(accounts, disk, env, path, journal)
        for name, secret in settings.first_users():
            if name not in accounts.users and (self._inner is None or name != self._inner.name):
                data = {"username": name, "password": secret, "userType": "Super"}
                accounts.create_user(data, by_super=True)
        if not any(user.is_super and user.is_enabled for user in accounts.users.values()):
            raise ConfigError(
                "authenticationEnabled=true, and no super user exists, so nobody could change"
                ' anything: set initAuthenticationUser={"username":"...","password":"..."} for the'
                " first start"
            )
        self.accounts, self.file = accounts, file
        if file is not None:
            if journal is None:
                file.save_now()
            self._processors = AccountProcessor(accounts, file).handlers()
        return AccountRules(
            accounts,
            settings.white_addresses(),
            is_authorizing=settings.authorization_enabled,
        )

    def guard(
        self, handlers: Mapping[int, Handler], needs: Mapping[int, Needs], cluster: str
    ) -> tuple[AccessGuard, dict[int, Handler]]:
        """Return the guard, and the processors and those of the accounts, each behind it.

        Raises:
            ConfigError: a list of codes is illegal.
        """
        rules, settings = self._rules, self._settings
        if rules is None:
            raise ConfigError("the accounts are not open")
        guard = AccessGuard(
            rules,
            cluster,
            needs,
            inner=self._inner,
            unsigned=_codes("authenticationWhitelist", settings.authentication_whitelist),
            unchecked=_codes("authorizationWhitelist", settings.authorization_whitelist),
        )
        return guard, guard.guarded({**handlers, **self._processors})

    def follow(self) -> None:
        """Read the files of ACL 1.0 again when they change."""
        if self._watch is not None:
            self._watch.start()

    def stop(self) -> None:
        """Follow no file any more."""
        if self._watch is not None:
            self._watch.stop()


def read_plain_accounts(path: str) -> PlainAccounts:
    """Read `plain_acl.yml` and the files of the folder `acl` beside it.  Blocks.

    Raises:
        ConfigError: a file cannot be read, is no YAML, or has an account that is illegal.
    """
    require("acl", "plain_acl.yml")
    import yaml

    documents: list[Mapping[str, Any]] = []
    for each in _plain_paths(path):
        try:
            # All scalars are texts: a secret of digits stays what it is.
            document = yaml.load(Path(each).read_text("utf-8"), Loader=yaml.BaseLoader)  # noqa: S506
        except OSError as error:
            raise ConfigError(f"{each} cannot be read: {error.strerror}") from error
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise ConfigError(f"{each} is no YAML: {error}") from error
        if document is None or document == "":
            continue
        if not isinstance(document, Mapping):
            raise ConfigError(f"{each} has no keys; it needs accounts")
        documents.append(document)
    try:
        return PlainAccounts.read(documents)
    except ConfigError as error:
        raise ConfigError(f"{path}: {error}") from error


def _plain_paths(path: str) -> list[str]:
    """The file, and those of the folder `acl` beside it in the order of their names."""
    folder = Path(path).parent / "acl"
    more = sorted(each for each in folder.glob("*.y*ml") if each.suffix in {".yml", ".yaml"})
    return [path, *map(str, more)]


class _PlainFiles:
    """The files of ACL 1.0, looked at in a worker."""

    def __init__(self, path: str, env: Environment) -> None:
        self._path = path
        self._env = env
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopped = False
        self._seen = self._marks()
        self.rules = PlainRules(read_plain_accounts(path))

    def start(self) -> None:
        if self._timer is None and not self._is_stopped:
            self._reread_later()

    def stop(self) -> None:
        self._is_stopped = True
        if self._timer is not None:
            self._timer.cancel()

    def _reread_later(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(
            RELOAD_INTERVAL_S, lambda: self._env.workers.submit(self._reread, self._install)
        )

    def _marks(self) -> list[tuple[str, int, int, int] | None]:
        """What changes when a file is written, replaced, added or removed."""
        marks: list[tuple[str, int, int, int] | None] = []
        for path in _plain_paths(self._path):
            try:
                stat = Path(path).stat()
            except OSError:
                marks.append(None)
            else:
                marks.append((path, stat.st_mtime_ns, stat.st_size, stat.st_ino))
        return marks

    def _reread(self) -> PlainAccounts | None:
        # The marks first: a file that changes while it is read differs from them next time.
        marks = self._marks()
        if marks == self._seen:
            return None
        self._seen = marks
        return read_plain_accounts(self._path)

    def _install(self, read: PlainAccounts | BaseException | None) -> None:
        if isinstance(read, CometError):
            log.warning("the accounts in force stay: %s", read)
        elif isinstance(read, BaseException):
            log.error("the accounts in force stay", exc_info=read)
        elif read is not None:
            self.rules.accounts = read
            log.info("%s was read again: %d accounts", self._path, len(read.accounts))
        if not self._is_stopped:
            self._reread_later()


def _file_of(
    accounts: Accounts, disk: Disk, env: Environment, path: str, journal: Journal | None
) -> ConfigFile:
    return ConfigFile(
        disk,
        env.workers,
        path,
        lambda: accounts.revision,
        lambda: _snapshot(accounts),
        journal,
        is_private=True,
    )


def _snapshot(accounts: Accounts) -> Any:
    data = accounts.to_json()
    return lambda: msgspec.json.encode(data)


def _decode(raw: bytes) -> Accounts:
    try:
        return Accounts.from_json(loads_object(raw, ACCOUNTS_FILE))
    except (ConfigError, AttributeError, TypeError) as error:
        raise CodecError(f"{ACCOUNTS_FILE}: {error}") from error


def _codes(key: str, text: str) -> frozenset[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    illegal = [word for word in words if not word.isdecimal()]
    if illegal:
        raise ConfigError(f"{key} has {illegal[0]!r}, which is no request code")
    return frozenset(map(int, words))
