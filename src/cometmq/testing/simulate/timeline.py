"""The time line of a simulation as text: what happened to each machine, and to each message.

A failing seed has thousands of events.  The text has those of the machines, and those of the
messages that the broken promise names; `timeline_page` draws all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.testing.simulate.run import Report
    from cometmq.testing.simulation import Event

__all__ = ["message_name", "named_messages", "of_machines", "of_messages", "plan_words", "text"]

MACHINE_EVENTS: Final = frozenset(
    {"crash", "goes on", "not started", "pause", "restart", "serves", "stop failed"}
)
CLUSTER_EVENTS: Final = frozenset({"fault", "faults end"})
NAMED_MAX: Final = 3
"""So many messages have a time line in the text; the page has all."""
_BODY: Final = re.compile(r"b'([^']*)'")


def message_name(body: bytes) -> str:
    """Return a message's short name: its kind and number, as bodies begin."""
    words = body[:60].decode("ascii", "replace").split("/")
    return "/".join(words[:2]) if len(words) > 2 else words[0][:24].rstrip(".")


def plan_words(report: Report) -> list[str]:
    """Say in lines what the plan does."""
    plan = report.plan
    faults = ", ".join(f"{fault.kind} at {fault.at_ms / 1000:.3f} s" for fault in plan.faults)
    return [
        f"{plan.flush}, brokers: {plan.brokers}, name servers: {plan.name_servers}, lives of queue "
        f"locks divided by {plan.lives}",
        f"{plan.steps} messages of each kind: {', '.join(plan.workloads)}",
        f"faults: {faults or 'none'}",
    ]


def of_machines(report: Report) -> dict[str, list[Event]]:
    """Map each machine to its events; "" has the cluster's faults."""
    lanes: dict[str, list[Event]] = {"": []}
    for event in report.events:
        if event.kind in MACHINE_EVENTS:
            lanes.setdefault(event.node, []).append(event)
        elif event.kind in CLUSTER_EVENTS:
            lanes[""].append(event)
        elif event.node:
            lanes.setdefault(event.node, [])
    return dict(sorted(lanes.items()))


def of_messages(report: Report) -> dict[str, list[Event]]:
    """Map each message to its events, those that the broken promise names first."""
    lanes: dict[str, list[Event]] = {}
    for event in report.events:
        if event.body is not None:
            lanes.setdefault(message_name(event.body), []).append(event)
    named = [name for name in named_messages(report) if name in lanes]
    return {name: lanes[name] for name in [*named, *(n for n in lanes if n not in named)]}


def named_messages(report: Report) -> list[str]:
    """Return the names of the messages in the text of the failure."""
    bodies = _BODY.findall(report.failure or "")
    return list(dict.fromkeys(message_name(body.encode()) for body in bodies))


def text(report: Report) -> Iterator[str]:
    """Yield the lines of a failing plan's time line."""
    yield from (f"  {line}" for line in plan_words(report))
    for node, events in of_machines(report).items():
        yield f"  {node or 'the cluster'}:"
        yield from _lines(events, with_node=False)
    messages = of_messages(report)
    named = [name for name in named_messages(report) if name in messages]
    if not named:
        # The promise is about a table or a file: what happened last is near its cause.
        latest = sorted(messages, key=lambda name: -messages[name][-1].at_s)
        named = latest[:NAMED_MAX]
    for name in named[:NAMED_MAX]:
        yield f"  message {name}:"
        yield from _lines(messages[name], with_node=True)
    yield f"  {report.virtual_s:9.3f} s  {report.failure}"


def _lines(events: list[Event], *, with_node: bool) -> Iterator[str]:
    if not events:
        yield "                (nothing happened to it)"
    for event in events:
        where = f" ({event.node})" if with_node and event.node else ""
        yield f"    {event.at_s:9.3f} s  {event.kind}{where} {event.detail}".rstrip()
