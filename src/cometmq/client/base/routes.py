"""Routes: which broker has which queues of a topic, fetched from name servers and cached.

A client stays with one name server and changes to another when that one does not answer; all give
the same answers.  The route of a topic that no name server knows is that of the template topic
TBW102, whose brokers create the topic on its first send
(``MQClientInstance.updateTopicRouteInfoFromNameServer``).
"""

import logging
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Final

from cometmq.client.base.name_servers import NameServers
from cometmq.client.base.transport import Io
from cometmq.errors import (
    ClientError,
    LocalProtocolError,
    NoBroker,
    NoRoute,
    ResponseCode,
    remote_error,
)
from cometmq.model import BrokerData, TopicRoute
from cometmq.model.names import DEFAULT_TOPIC, check_topic
from cometmq.wire.body.route import decode_cluster_info, decode_topic_route
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

__all__ = ["RouteBook"]

MASTER_ID: Final = 0
NEW_TOPIC_QUEUE_COUNT: Final = 4
"""Queues a producer asks for when its send creates the topic (``defaultTopicQueueNums``)."""


class RouteBook:
    """Routes of the topics a client uses."""

    def __init__(self, io: Io, name_servers: NameServers, timeout_ms: int) -> None:
        self._io = io
        self._servers = name_servers
        self._asked: str | None = None
        self._timeout_ms = timeout_ms
        self._routes: dict[str, TopicRoute] = {}
        self._forgotten: dict[str, TopicRoute] = {}
        self.on_change: Callable[[str], None] | None = None
        """Called with the topic of a route that differs from the one before."""
        self.on_replaced: Callable[[str], None] | None = None
        """Called with the address of a master that another broker has replaced."""
        self._addresses: dict[str, dict[int, str]] = {}
        self.has_answered = False
        """Whether any name server has answered a request."""
        self.outages = io.outages
        """What this client cannot do at present."""

    @property
    def name_servers(self) -> tuple[str, ...]:
        """All known addresses; before the first request, what the program gave."""
        return self._servers.addresses or self._servers.entries

    def is_name_server(self, address: str) -> bool:
        """Whether this is, or was, the address of a name server."""
        return self._servers.was_used(address)

    async def ask(self, command: RemotingCommand) -> RemotingCommand:
        """Send a request to the current name server, then to the others until one answers.

        Raises:
            ClientError: none of them answered; the text has the cause for each.
        """
        servers = self._servers
        await servers.look_up(self._io)
        if self._asked is not None and self._asked not in servers.addresses:
            self._io.drop(self._asked)
            self._asked = None
        faults: list[str] = []
        tried: list[str] = []
        last: ClientError = NoRoute("")
        while True:
            address = servers.choose(tried)
            if address is None:
                if await servers.look_up(self._io, at_once=True):
                    continue
                break
            tried.append(address)
            try:
                answer = await self._io.request(address, command, self._timeout_ms)
            except ClientError as error:
                last = error
                faults.append(f"{address}: {error}")
                self.outages.failed("a request to the name servers", error, level=logging.INFO)
            else:
                self._asked = address
                self.has_answered = True
                self.outages.ended("a request to the name servers")
                return answer
        # A server that demands TLS ends a plain connection without a word.
        tls = ", and whether it demands TLS (tls=)" if "closed by the peer" in faults[-1] else ""
        raise type(last)(
            f"no name server answered ({'; '.join(faults)}); check the addresses in name_server= "
            f"or NAMESRV_ADDR and that a name server runs there{tls}"
        )

    async def fetch(self, topic: str) -> TopicRoute | None:
        """Fetch the route; None if the name server knows no broker for the topic.

        Raises:
            ClientError: no name server answered.
            RemoteError: the name server refused.
        """
        command = RemotingCommand.request(
            RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic, "acceptStandardJsonOnly": "true"}
        )
        answer = await self.ask(command)
        if answer.code == ResponseCode.TOPIC_NOT_EXIST:
            return None
        if answer.code != 0:
            raise remote_error(answer.code, answer.remark)
        return decode_topic_route(answer.body)

    async def refresh(self, topic: str) -> TopicRoute | None:
        """Fetch and cache the route; a topic without a route keeps the cached one."""
        route = await self.fetch(topic)
        if route is not None:
            self.remember(topic, route)
        return route

    async def find(self, topic: str) -> TopicRoute:
        """The cached route, else the fetched one.

        Raises:
            NoRoute: the topic does not exist.
            LocalProtocolError: the topic's name is illegal.
        """
        route = self._routes.get(topic)
        if route is None:
            route = await self.refresh(topic)
        if route is None:
            fault = check_topic(topic)
            if fault is not None:
                raise LocalProtocolError(fault)
            raise NoRoute(
                f"no name server of {self._servers.text} knows a broker for the topic "
                f"{topic}; create it (cometmq topic create {topic}) or check the spelling"
            )
        return route

    async def find_for_send(self, topic: str) -> TopicRoute:
        """The route for a send: the topic's, or the template's for a topic that does not exist yet.

        Raises:
            NoRoute: neither the topic nor the template has a broker.
        """
        route = self._routes.get(topic)
        if route is None:
            route = await self.refresh(topic)
        if route is not None:
            return route
        template = await self.fetch(DEFAULT_TOPIC)
        if template is None:
            if not await self._has_brokers():
                raise NoBroker(
                    f"no broker is registered at the name servers {self._servers.text}; "
                    "check that one runs and knows their addresses (namesrvAddr)"
                )
            raise NoRoute(
                f"no name server of {self._servers.text} knows a broker for the topic "
                f"{topic}, and automatic creation is off (no broker offers {DEFAULT_TOPIC}); "
                f"create the topic (cometmq topic create {topic}) or start a broker"
            )
        self.learn_addresses(template.broker_datas)
        return replace(
            template,
            queue_datas=tuple(
                replace(
                    data,
                    read_queue_count=min(NEW_TOPIC_QUEUE_COUNT, data.read_queue_count),
                    write_queue_count=min(NEW_TOPIC_QUEUE_COUNT, data.read_queue_count),
                )
                for data in template.queue_datas
            ),
        )

    async def _has_brokers(self) -> bool:
        """Whether a broker is registered; True where the name server does not say."""
        answer = await self.ask(RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO))
        return answer.code != 0 or bool(decode_cluster_info(answer.body)[0])

    def cached(self, topic: str) -> TopicRoute | None:
        """The cached route."""
        return self._routes.get(topic)

    def remember(self, topic: str, route: TopicRoute) -> None:
        """Cache a route and the addresses in it."""
        before = self._routes.get(topic) or self._forgotten.pop(topic, None)
        if before is not None and self.on_replaced is not None:
            for address in replaced_masters(before, route):
                self.on_replaced(address)
        self._routes[topic] = route
        self.learn_addresses(route.broker_datas)
        if before is not None and before != route and self.on_change is not None:
            self.on_change(topic)

    def learn_addresses(self, brokers: Iterable[BrokerData]) -> None:
        """Cache the addresses of brokers."""
        for broker in brokers:
            self._addresses[broker.broker_name] = dict(broker.broker_addrs)

    def forget(self, topic: str) -> None:
        """Drop a cached route, so that the next use fetches it."""
        route = self._routes.pop(topic, None)
        if route is not None:
            self._forgotten[topic] = route

    def address(self, broker_name: str, broker_id: int = MASTER_ID) -> str | None:
        """The address of a broker's member; of another member if that one is missing."""
        members = self._addresses.get(broker_name)
        if not members:
            return None
        address = members.get(broker_id)
        if address is None and broker_id != MASTER_ID:
            address = members.get(MASTER_ID) or next(iter(members.values()))
        return address

    def any_address(self, broker_name: str) -> str | None:
        """The master's address; a slave's if there is no master."""
        members = self._addresses.get(broker_name)
        if not members:
            return None
        return members.get(MASTER_ID) or members[min(members)]

    def broker_addresses(self) -> dict[str, dict[int, str]]:
        """Addresses by broker name and member id."""
        return self._addresses


def replaced_masters(before: TopicRoute, after: TopicRoute) -> list[str]:
    """Return the addresses of masters in a route in whose place another one has others, and which
    the other route does not name any more."""
    masters = {each.broker_name: each.broker_addrs.get(0) for each in after.broker_datas}
    named = {address for each in after.broker_datas for address in each.broker_addrs.values()}
    return [
        address
        for each in before.broker_datas
        if (address := each.broker_addrs.get(0)) is not None
        and masters.get(each.broker_name) is not None
        and address not in named
    ]
