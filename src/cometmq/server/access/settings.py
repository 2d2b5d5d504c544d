"""RocketMQ's settings of access control, for broker, name server and controller alike."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from cometmq.core.access.white import WhiteAddresses
from cometmq.errors import ConfigError
from cometmq.net.limits import LimitSettings
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.frame.acl import Credentials

__all__ = ["AccessSettings"]

_SECRET_KEYS: Final = ("initAuthenticationUser", "innerClientAuthenticationCredentials")


class AccessSettings(LimitSettings, frozen=True, kw_only=True, rename="camel"):
    """The keys of ACL 2.0 and 1.0; `plain_acl_file` and `global_white_remote_addresses` are ours.

    RocketMQ finds `plain_acl.yml` in its home folder, and has white addresses in that file only.
    """

    authentication_enabled: bool = False
    authorization_enabled: bool = False
    init_authentication_user: str = ""
    inner_client_authentication_credentials: str = ""
    authentication_whitelist: str = ""
    authorization_whitelist: str = ""
    global_white_remote_addresses: str = ""
    acl_enable: bool = False
    plain_acl_file: str = ""

    @property
    def is_guarded(self) -> bool:
        """Whether requests are checked at all."""
        return self.authentication_enabled or self.acl_enable

    def check_access(self) -> None:
        """Refuse settings that would protect nobody.

        Raises:
            ConfigError: the text names the keys.
        """
        if self.authorization_enabled and not self.authentication_enabled:
            raise ConfigError(
                "authorizationEnabled=true is not accepted without authenticationEnabled=true:"
                " anybody could give himself the name of a user who may"
            )
        if self.acl_enable and self.authentication_enabled:
            raise ConfigError(
                "aclEnable=true (plain_acl.yml) and authenticationEnabled=true are two sources of"
                " accounts: choose one; cometmq acl migrate takes the accounts from one to the"
                " other"
            )
        if self.acl_enable and not self.plain_acl_file:
            raise ConfigError("aclEnable=true needs plainAclFile, the path of a plain_acl.yml")
        if self.plain_acl_file and not self.acl_enable:
            raise ConfigError("plainAclFile needs aclEnable=true: nobody would read the file")
        if self.global_white_remote_addresses and not self.authentication_enabled:
            raise ConfigError(
                "globalWhiteRemoteAddresses needs authenticationEnabled=true; with aclEnable=true"
                " they stand in plain_acl.yml"
            )
        self.white_addresses()

    def white_addresses(self) -> WhiteAddresses:
        """From where every request passes.

        Raises:
            ConfigError: an address is illegal.
        """
        return WhiteAddresses([self.global_white_remote_addresses])

    def credentials(self, key: str) -> tuple[str, str] | None:
        """The name and the secret in one of the two settings that have them; None without.

        Raises:
            ConfigError: the setting is no such JSON; the text does not repeat it.
        """
        is_inner = key == "innerClientAuthenticationCredentials"
        text = (
            self.inner_client_authentication_credentials
            if is_inner
            else self.init_authentication_user
        )
        names = ("accessKey", "secretKey") if is_inner else ("username", "password")
        if not text:
            return None
        try:
            data = msgspec.json.decode(text, type=dict[str, str])
            return data[names[0]], data[names[1]]
        except (msgspec.MsgspecError, KeyError):
            raise ConfigError(
                f'{key} is no JSON of the form {{"{names[0]}":"...","{names[1]}":"..."}}'
            ) from None

    def first_users(self) -> list[tuple[str, str]]:
        """The super users that the settings ask for: name and secret.

        Raises:
            ConfigError: a setting is illegal.
        """
        return [user for key in _SECRET_KEYS if (user := self.credentials(key)) is not None]

    def signer(self) -> Callable[[RemotingCommand], None] | None:
        """What signs the server's own requests; None where nothing does.

        Raises:
            ConfigError: innerClientAuthenticationCredentials is illegal.
        """
        user = self.credentials("innerClientAuthenticationCredentials")
        return None if user is None else Credentials(*user).sign_command

    @staticmethod
    def masked(texts: Mapping[str, str]) -> dict[str, str]:
        """Settings as others may see them: without secrets."""
        return {key: "***" if text and key in _SECRET_KEYS else text for key, text in texts.items()}
