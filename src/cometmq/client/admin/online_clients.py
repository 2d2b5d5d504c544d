"""The admin client's calls about clients that are online: who they are, and what they do.

`OnlineCalls` lists producers and consumers, asks a consumer for its running state, and lets one
consume a single message.  Brokers relay the last two to the consumer.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from cometmq.client.base.calls import BrokerCalls
from cometmq.client.message.message import ReceivedMessage
from cometmq.errors import ConfigError, NoRoute, RemoteError, ResponseCode
from cometmq.wire.body.admin import decode_consumer_connection
from cometmq.wire.body.client import ConsumeDirectlyResult, ConsumerRunningInfo
from cometmq.wire.body.stats import decode_producer_table
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand
from cometmq.wire.header.headers import (
    ConsumeDirectlyHeader,
    ConsumerGroupHeader,
    RunningInfoHeader,
)

__all__ = ["OnlineCalls", "OnlineClient"]


@dataclass(slots=True)
class OnlineClient:
    """A member of a group, as brokers see it.

    ``role`` is ``producer`` or ``consumer``, ``version`` RocketMQ's version number of the client,
    ``brokers`` the names of the brokers it is connected to.  ``subscriptions`` has the expression
    of each topic; brokers give those of a group, not of one member.
    """

    role: str
    group: str
    client_id: str
    address: str
    language: str
    version: int
    brokers: list[str] = field(default_factory=list)
    subscriptions: dict[str, str] = field(default_factory=dict)


class _OnlineAdmin(Protocol):
    _calls: BrokerCalls

    async def _masters(
        self, cluster: str | None = None, broker_name: str | None = None
    ) -> dict[str, str]: ...

    async def group_list(self, *, include_system: bool = False) -> list[str]: ...


class OnlineCalls:
    """The admin client's calls about clients that are online."""

    async def online_clients(
        self: _OnlineAdmin, group: str | None = None, *, consumers_of: Iterable[str] | None = None
    ) -> list[OnlineClient]:
        """The producers and consumers that masters know, of one group or of all.

        Sorted by role, group and client id; a client with several groups has a row for each.

        Args:
            consumers_of: all producers, and only the consumers of these groups; each group is a
                request to each master.
        """
        matches: dict[tuple[str, str, str], OnlineClient] = {}
        if consumers_of is not None:
            groups = list(consumers_of)
        elif group is not None:
            groups = [group]
        else:
            groups = await self.group_list(include_system=True)
        for broker_name, address in (await self._masters()).items():
            for seen in await _seen_by(self._calls, address, group, groups):
                client = matches.setdefault((seen.role, seen.group, seen.client_id), seen)
                client.brokers.append(broker_name)
        return [matches[key] for key in sorted(matches)]

    async def consumer_running_info(
        self: _OnlineAdmin, group: str, client_id: str, *, stacks: bool = False
    ) -> ConsumerRunningInfo:
        """A consumer's own report: its queues, what they wait for, its rates; and its stacks.

        Raises:
            NoRoute: no broker knows the client as a member of the group.
            RemoteError: the consumer refused, or did not answer a broker.
        """
        header = RunningInfoHeader(group, client_id, stacks)
        command = RemotingCommand.request(RequestCode.GET_CONSUMER_RUNNING_INFO, header.to_ext())
        for address in (await self._masters()).values():
            if client_id in await self._calls.consumer_ids(address, group):
                return ConsumerRunningInfo.decode((await self._calls.ask(address, command)).body)
        raise NoRoute(f"no member of {group} with the client id {client_id} is online")

    async def consume_directly(
        self: _OnlineAdmin, group: str, client_id: str, message: ReceivedMessage
    ) -> ConsumeDirectlyResult:
        """Let a consumer run its handler on one stored message, and report the outcome.

        The message's own state does not change: no offset, no retry, no dead letter.

        Args:
            message: as `view_message` or `query_message` gave it.

        Raises:
            ConfigError: the broker of the message has no master now.
            RemoteError: the consumer is not connected to that broker, or did not answer.
        """
        broker_name = message.message_queue.broker_name
        address = (await self._masters(broker_name=broker_name))[broker_name]
        header = ConsumeDirectlyHeader(
            group,
            client_id,
            message.stored.offset_message_id,
            broker_name,
            message.stored.topic,
        )
        command = RemotingCommand.request(RequestCode.CONSUME_MESSAGE_DIRECTLY, header.to_ext())
        return ConsumeDirectlyResult.decode((await self._calls.ask(address, command)).body)

    async def change_broker_config(
        self: _OnlineAdmin, broker_name: str, settings: Mapping[str, str]
    ) -> None:
        """Change settings of a running broker, all of them or none (``updateBrokerConfig``).

        Raises:
            ConfigError: no broker has this name, or a value has a line end.
            RemoteError: the broker refuses a key or a value; its text says which, and nothing was
                changed.
        """
        for key, value in settings.items():
            if "\n" in key + value or "\r" in key + value:
                raise ConfigError(f"{key}={value!r} has a line end, which no setting has")
        address = (await self._masters(broker_name=broker_name))[broker_name]
        body = "".join(f"{key}={value}\n" for key, value in settings.items()).encode()
        command = RemotingCommand.request(RequestCode.UPDATE_BROKER_CONFIG, body=body)
        await self._calls.ask(address, command)


async def _seen_by(
    calls: BrokerCalls, address: str, only: str | None, groups: list[str]
) -> list[OnlineClient]:
    """The clients of one broker; ``only`` limits producers to a group."""
    command = RemotingCommand.request(RequestCode.GET_ALL_PRODUCER_INFO)
    table = decode_producer_table((await calls.ask(address, command)).body)
    rows = [
        OnlineClient(
            "producer",
            name,
            producer.client_id,
            producer.remote_ip.removeprefix("/"),
            producer.language,
            producer.version,
        )
        for name, producers in table.items()
        if only in (None, name)
        for producer in producers
    ]
    for name in groups:
        command = RemotingCommand.request(
            RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerGroupHeader(name).to_ext()
        )
        try:
            answer = await calls.ask(address, command)
        except RemoteError as error:
            if error.code != ResponseCode.CONSUMER_NOT_ONLINE:
                raise
            continue
        online = decode_consumer_connection(answer.body)
        subscriptions = {topic: each.sub_string for topic, each in online.subscriptions.items()}
        rows += [
            OnlineClient(
                "consumer",
                name,
                each.client_id,
                each.client_addr,
                each.language,
                each.version,
                subscriptions=dict(subscriptions),
            )
            for each in online.connections
        ]
    return rows
