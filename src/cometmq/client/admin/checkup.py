"""The admin client's check-up: whether each server answers, and what is wrong with a cluster.

Each check measures something, and its `Diagnosis` says what was measured and what to do.  Nothing
is changed.  Times are measured from where the client runs, so that an address which only the
broker's own host can reach is found.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cometmq.client.admin.lag_causes import LagCause, LagView
from cometmq.client.base.calls import BrokerCalls
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.transport import Io
from cometmq.errors import CometError
from cometmq.wire.body.route import decode_cluster_info
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import RemotingCommand

if TYPE_CHECKING:
    from cometmq.client.admin.calls import ClusterInfo

__all__ = ["CheckupCalls", "Diagnosis", "Reached"]

DISK_NEARLY_FULL: Final = 0.85
DISK_FULL: Final = 0.90
"""From this ratio on RocketMQ's brokers refuse sends (``diskSpaceWarningLevelRatio``)."""
CLOCK_DIFFERENCE_MS: Final = 3_000
"""A broker tells its clock to a second."""
_RUNTIME: Final = re.compile(r"(\d+) days, (\d+) hours, (\d+) minutes, (\d+) seconds")


@dataclass(frozen=True, slots=True)
class Reached:
    """A server's answer to one small request; ``error`` is None if it came."""

    server: str
    address: str
    took_ms: float
    error: str | None = None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The outcome of one check: ``level`` is ``ok``, ``warning`` or ``wrong``."""

    level: str
    check: str
    measured: str
    remedy: str = ""


class _CheckupAdmin(Protocol):
    _io: Io
    _calls: BrokerCalls
    _routes: RouteBook

    async def cluster_info(self) -> "ClusterInfo": ...

    async def runtime_info_at(self, address: str) -> dict[str, str]: ...

    async def group_list(self, *, include_system: bool = False) -> list[str]: ...

    async def explain_lag(
        self, group: str, topics: Iterable[str] | None = None
    ) -> tuple[LagView, list[LagCause]]: ...

    async def answer_times(self, address: str | None = None) -> list[Reached]: ...


class CheckupCalls:
    """The admin client's calls for health checks."""

    async def answer_times(self: _CheckupAdmin, address: str | None = None) -> list[Reached]:
        """How long each name server and broker takes to answer, or why it does not.

        Args:
            address: of one broker, to ask nobody else.
        """
        if address is not None:
            command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
            return [await _reach(self, "broker", address, command)]
        command = RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
        rows = [
            await _reach(self, "name server", each, command) for each in self._routes.name_servers
        ]
        if all(row.error for row in rows):
            return rows
        command = RemotingCommand.request(RequestCode.GET_BROKER_RUNTIME_INFO)
        for name, broker in sorted((await self.cluster_info()).brokers.items()):
            for broker_id, member in sorted(broker.broker_addrs.items()):
                rows.append(await _reach(self, f"broker {name}:{broker_id}", member, command))
        return rows

    async def check_up(self: _CheckupAdmin) -> list[Diagnosis]:
        """Look at every server and every group; what is wrong comes first.

        Raises:
            ClientError: no name server answers.
        """
        findings = [_answered(row) for row in await self.answer_times()]
        info = await self.cluster_info()
        findings.append(await _same_brokers(self, info))
        addresses = [
            address for broker in info.brokers.values() for address in broker.broker_addrs.values()
        ]
        tables: dict[str, dict[str, str]] = {}
        for address in addresses:
            try:
                tables[address] = await self.runtime_info_at(address)
            except CometError:
                continue  # reported by its row of answer_times
            findings.append(_disk(address, tables[address]))
            findings.append(_clock(address, tables[address], self._io.env.clock.now_ms()))
        findings.append(_releases(tables))
        for group in await self.group_list():
            findings += await _group_diagnoses(self, group)
        order = ("wrong", "warning", "ok")
        return sorted(findings, key=lambda finding: order.index(finding.level))


async def _reach(
    admin: _CheckupAdmin, server: str, address: str, command: RemotingCommand
) -> Reached:
    clock = admin._io.env.clock
    begun = clock.monotonic()
    error: str | None = None
    try:
        await admin._calls.ask(address, command)
    except CometError as cause:
        error = str(cause)
    return Reached(server, address, round((clock.monotonic() - begun) * 1000, 1), error)


def _answered(row: Reached) -> Diagnosis:
    check = f"{row.server} {row.address}"
    if row.error is None:
        return Diagnosis("ok", check, f"answered in {row.took_ms} ms")
    remedy = "start it, or open the way to it from here"
    if row.server.startswith("broker"):
        remedy = (
            "clients use this address: if the broker runs, it registered one that is not reachable"
            " from here; set brokerIP1 to a reachable one"
        )
    return Diagnosis("wrong", check, row.error, remedy)


async def _same_brokers(admin: _CheckupAdmin, info: "ClusterInfo") -> Diagnosis:
    """Whether all name servers know the same brokers: each broker must register with all."""
    known = {
        (name, address)
        for name, broker in info.brokers.items()
        for address in broker.broker_addrs.values()
    }
    if not known:
        return Diagnosis(
            "wrong", "brokers", "no broker is registered", "start one with cometmq broker"
        )
    lacking: list[str] = []
    for server in admin._routes.name_servers:
        try:
            answer = await admin._calls.ask(
                server, RemotingCommand.request(RequestCode.GET_BROKER_CLUSTER_INFO)
            )
        except CometError:
            continue  # reported by its row of answer_times
        brokers, _ = decode_cluster_info(answer.body)
        there = {
            (name, address)
            for name, broker in brokers.items()
            for address in broker.broker_addrs.values()
        }
        lacking += [f"{server} lacks {name} {address}" for name, address in sorted(known - there)]
        lacking += [f"{server} alone has {name} {address}" for name, address in there - known]
    if lacking:
        return Diagnosis(
            "wrong",
            "name servers",
            "; ".join(lacking),
            "name all name servers in each broker's namesrvAddr",
        )
    return Diagnosis("ok", "name servers", f"all know the same brokers: {len(known)}")


def _disk(address: str, table: Mapping[str, str]) -> Diagnosis:
    ratio = float(table.get("commitLogDiskRatio") or 0)
    check, used = f"disk of {address}", f"{ratio:.0%} used"
    remedy = "free space on it, or keep messages for a shorter time (fileReservedTime)"
    if ratio >= DISK_FULL:
        return Diagnosis("wrong", check, f"{used}; brokers refuse sends from 90 % on", remedy)
    if ratio >= DISK_NEARLY_FULL:
        return Diagnosis("warning", check, f"{used}; brokers refuse sends from 90 % on", remedy)
    return Diagnosis("ok", check, used)


def _clock(address: str, table: Mapping[str, str], now_ms: int) -> Diagnosis:
    """Compare the broker's clock, as start and running time give it, with the one here."""
    check = f"clock of {address}"
    match = _RUNTIME.search(table.get("runtime", ""))
    if match is None or "bootTimestamp" not in table:
        return Diagnosis("ok", check, "the broker does not tell its time")
    days, hours, minutes, seconds = map(int, match.groups())
    run_ms = (((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1000
    ahead_ms = int(table["bootTimestamp"]) + run_ms - now_ms
    if abs(ahead_ms) <= CLOCK_DIFFERENCE_MS:
        return Diagnosis("ok", check, "differs by less than 3 s")
    direction = "ahead of" if ahead_ms > 0 else "behind"
    return Diagnosis(
        "warning",
        check,
        f"{abs(ahead_ms) / 1000:.0f} s {direction} the one here",
        "synchronise the clocks: delays, searches by time and retention follow the broker's",
    )


def _releases(tables: Mapping[str, Mapping[str, str]]) -> Diagnosis:
    releases = {
        address: table.get("brokerVersionDesc", "unknown") for address, table in tables.items()
    }
    if len(set(releases.values())) <= 1:
        return Diagnosis(
            "ok", "releases", ", ".join(set(releases.values())) or "no broker answered"
        )
    return Diagnosis(
        "warning",
        "releases",
        ", ".join(f"{address} {release}" for address, release in sorted(releases.items())),
        "finish the upgrade: brokers of one cluster should be of one release",
    )


async def _group_diagnoses(admin: _CheckupAdmin, group: str) -> list[Diagnosis]:
    """Whether a group's messages reach somebody, and why not."""
    check = f"group {group}"
    view, causes = await admin.explain_lag(group)
    causes = [cause for cause in causes if cause.kind != "catching-up"]
    if not causes:
        lag = sum(map(view.lag, view.waiting))
        measured = f"members: {len(view.members)}, messages that wait: {lag:,}"
        return [Diagnosis("ok", check, measured)]
    return [
        Diagnosis("warning", check, f"{cause.kind}: {cause.evidence}", cause.remedy)
        for cause in causes
    ]
