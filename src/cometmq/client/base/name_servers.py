"""The name servers of a client: which addresses there are, and which one is used.

A client begins with a random one, so that the clients of a cluster spread over its name servers,
and stays with it until it fails.  An entry of ``name_server=`` is one of these:

- ``host:port`` with an IP address, the address itself;
- ``name:port``, every address to which the name resolves;
- ``http://host:port/path``, an address server (RocketMQ's ``DefaultTopAddressing``), which answers
  with a list such as ``10.0.0.1:9876;10.0.0.2:9876``.

Names and address servers are asked before the first request, every two minutes as in RocketMQ, and
when no known address answers.  If they do not answer, the last list stays.  With TLS a name is not
resolved here, because the certificate is compared with the name; the connection then tries the
addresses of the name one after the other.
"""

import logging
import os
from collections.abc import Collection, Iterable
from ipaddress import ip_address
from typing import Final, Protocol
from urllib.parse import urlsplit

from cometmq.client.base.arguments import checked_text
from cometmq.errors import CometError, ConfigError, ConfigTypeError, ConnectFailed
from cometmq.net.env import Environment
from cometmq.net.network import parse_address

__all__ = ["LookUp", "NameServers", "name_server_entries"]

log = logging.getLogger("cometmq.client")

NAME_SERVER_VARIABLE: Final = "NAMESRV_ADDR"
DEFAULT_NAME_SERVER: Final = "127.0.0.1:9876"
LOOK_UP_INTERVAL_S: Final = 120.0
"""``MQClientInstance`` asks its address server this often."""
LOOK_UP_PAUSE_S: Final = 1.0
"""While no name server answers, names are looked up no more often than this."""
ADDRESS_SERVER_TIMEOUT_MS: Final = 3_000


def name_server_entries(name_server: object) -> tuple[str, ...]:
    """Entries from ``a:9876;b:9876``, a sequence, ``NAMESRV_ADDR``, or the local default.

    Raises:
        ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
    """
    if name_server is None:
        name_server = os.environ.get(NAME_SERVER_VARIABLE) or DEFAULT_NAME_SERVER
    if isinstance(name_server, str):
        name_server = [name_server]
    elif not isinstance(name_server, Iterable) or isinstance(name_server, (bytes, bytearray)):
        raise ConfigTypeError(
            f"name_server is {name_server!r:.100} ({type(name_server).__name__}); give a text such "
            "as 127.0.0.1:9876, or a list of such texts"
        )
    texts = [checked_text("a name server address", text) for text in name_server]
    entries = _checked_entries(";".join(texts), may_be_url=True)
    if not entries:
        raise ConfigError(
            f"no name server address given; set name_server= or {NAME_SERVER_VARIABLE} to "
            "something like 127.0.0.1:9876"
        )
    return entries


def _checked_entries(text: str, *, may_be_url: bool) -> tuple[str, ...]:
    entries: dict[str, None] = {}
    for part in text.replace(",", ";").split(";"):
        entry = part.strip()
        if may_be_url and _is_url(entry):
            _check_url(entry)
            entries[entry] = None
            continue
        # RocketMQ's ``NameServerAddressUtils`` takes http://host:port for host:port too.
        entry = entry.removeprefix("http://").rstrip("/")
        if not entry:
            continue
        try:
            if not parse_address(entry)[1]:
                raise ValueError("no server listens on port 0")
        except Exception as error:
            raise ConfigError(
                f"name server address {entry!r} is not host:port; set name_server= or "
                f"{NAME_SERVER_VARIABLE} to something like 127.0.0.1:9876"
            ) from error
        entries[entry] = None
    return tuple(entries)


def _is_url(entry: str) -> bool:
    """Whether the entry names an address server: a URL with a path."""
    scheme, _, rest = entry.partition("://")
    return scheme in ("http", "https") and bool(rest.partition("/")[2])


def _check_url(url: str) -> None:
    try:
        parts = urlsplit(url)
        is_good = bool(parts.hostname) and parts.port != 0
    except ValueError:
        is_good = False
    if not is_good:
        raise ConfigError(
            f"the address server {url!r} is not a URL such as http://host:8080/rocketmq/nsaddr"
        )


class LookUp(Protocol):
    """What looking up name servers needs of the network."""

    async def resolve(self, host: str, port: int) -> list[str]:
        """Every ``ip:port`` of a host name.

        Raises:
            ConnectFailed: the name is not known.
        """
        ...

    async def fetch_text(self, url: str, timeout_ms: int) -> str:
        """The text at a URL.

        Raises:
            ConnectFailed: there was no answer, or none with a text.
        """
        ...


class NameServers:
    """The name servers of one client; its requests and its program may use it in any thread."""

    def __init__(self, name_server: object, env: Environment, *, resolves: bool) -> None:
        self._env = env
        self._resolves = resolves
        self._used: set[str] = set()
        self.addresses: tuple[str, ...] = ()
        """Every known address."""
        self.current: str | None = None
        """The address that is asked first."""
        self.change(name_server)

    def change(self, name_server: object) -> None:
        """Use these from now on; the present one stays if it is among them.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self.entries = name_server_entries(name_server)
        """As the program gave them."""
        self._names = tuple(filter(self._needs_look_up, self.entries))
        self._addresses_of: dict[str, tuple[str, ...]] = {}
        for entry in self.entries:
            if entry not in self._names:
                self._addresses_of[entry] = (entry,)
        self._looked_up_at: float | None = None
        self._gather()

    def _needs_look_up(self, entry: str) -> bool:
        if _is_url(entry):
            return True
        if not self._resolves:
            return False
        try:
            ip_address(parse_address(entry)[0].partition("%")[0])
        except ValueError:
            return True
        return False

    def _gather(self) -> bool:
        """Collect the addresses of all entries; True if they are others than before."""
        before = self.addresses
        self.addresses = tuple(
            dict.fromkeys(
                address for entry in self.entries for address in self._addresses_of.get(entry, ())
            )
        )
        return self.addresses != before

    @property
    def text(self) -> str:
        """The entries, for a person."""
        return ";".join(self.entries)

    def choose(self, tried: Collection[str]) -> str | None:
        """The present address, or else a random one that was not tried; None without one."""
        if self.current not in self.addresses or self.current in tried:
            addresses = [address for address in self.addresses if address not in tried]
            if not addresses:
                return None
            # With one address no random number is drawn: old seeds of the simulator stay valid.
            chosen = addresses[0] if len(addresses) == 1 else self._env.chance.choice(addresses)
            self._used.add(chosen)
            self.current = chosen
        return self.current

    def was_used(self, address: str) -> bool:
        """Whether this is, or was, the address of a name server."""
        return address in self._used

    async def look_up(self, network: LookUp, *, at_once: bool = False) -> bool:
        """Ask for the addresses of names, if that is due; True if there are others than before.

        Raises:
            ConnectFailed: no address is known, and nobody named one.
        """
        names = self._names
        if not names:
            return False
        now = self._env.clock.monotonic()
        limit_s = LOOK_UP_PAUSE_S if at_once else LOOK_UP_INTERVAL_S
        since = self._looked_up_at
        if self.addresses and since is not None and now - since < limit_s:
            return False
        self._looked_up_at = now
        faults: list[str] = []
        for name in names:
            try:
                addresses = await self._ask_for_addresses(network, name)
            except CometError as error:
                log.info("the name servers of %s were not looked up: %s", name, error)
                faults.append(str(error))
            else:
                if self._names is not names:
                    return True  # they were changed in the meantime
                self._addresses_of[name] = addresses
        is_changed = self._gather()
        if not self.addresses:
            raise ConnectFailed(
                f"no name server is known ({'; '.join(faults)}); check name_server= or "
                f"{NAME_SERVER_VARIABLE}"
            )
        if is_changed:
            log.info("the name servers of %s are %s", self.text, ";".join(self.addresses))
        return is_changed

    async def _ask_for_addresses(self, network: LookUp, entry: str) -> tuple[str, ...]:
        if not _is_url(entry):
            return tuple(await network.resolve(*parse_address(entry)))
        text = (await network.fetch_text(entry, ADDRESS_SERVER_TIMEOUT_MS)).strip()
        lines = text.splitlines()
        try:
            addresses = _checked_entries(lines[0] if lines else "", may_be_url=False)
        except ConfigError as error:
            raise ConnectFailed(f"the address server {entry} answered {text!r:.100}") from error
        if not addresses:
            raise ConnectFailed(f"the address server {entry} knows no name server")
        return addresses
