"""`cometmq dead-letters`: what died for a group, and a selection of it sent again.

Job: options, listings, the question before sending, progress. It must not read or send messages;
`cometmq.client.admin.redrive` does.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cometmq.cli.admin.existing_group import require_group
from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import (
    admin_client,
    is_quiet,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.streams import utf8
from cometmq.cli.terminal.values import NAME, Finite, parse_time_ms

if TYPE_CHECKING:
    from cometmq.client.admin.redrive import RedrivePlan
    from cometmq.client.message.message import ReceivedMessage
    from cometmq.core.retry.dead_letters import Death, DeathSelection

__all__ = ["dead_letters"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dead-letters", short_help="List a group's dead letters and send them again.")
def dead_letters() -> None:
    """List a group's dead letters and send them again."""


def _selection_options(function: F) -> F:
    """What chooses among the dead letters; all of it must hold."""
    for option in reversed(
        (
            click.option(
                "--topic",
                "topics",
                metavar="TOPIC",
                multiple=True,
                help="Select messages first sent to this topic.",
            ),
            click.option(
                "--tag",
                "tags",
                callback=utf8,
                metavar="TAG",
                multiple=True,
                help="Select messages with this tag.",
            ),
            click.option(
                "--key",
                "keys",
                callback=utf8,
                metavar="KEY",
                multiple=True,
                help="Select messages with this key.",
            ),
            click.option("--id", "ids", metavar="ID", multiple=True, help="With this message id."),
            click.option(
                "--reason",
                "reasons",
                metavar="TEXT",
                multiple=True,
                help="Select messages whose reason contains TEXT.",
            ),
            click.option(
                "--since", metavar="TIME", callback=parse_time_ms, help="Died at or after."
            ),
            click.option(
                "--until",
                metavar="TIME",
                callback=parse_time_ms,
                help="Select messages that died before TIME.",
            ),
            click.option(
                "--reason-property",
                "reason_properties",
                metavar="NAME",
                multiple=True,
                help="Property in which your consumers record the cause.  "
                "[default: error, exception, reason]",
            ),
        )
    ):
        function = option(function)
    return function


def _selection(given: dict[str, Any]) -> "DeathSelection":
    from cometmq.core.retry.dead_letters import DeathSelection

    return DeathSelection(
        topics=given["topics"],
        tags=given["tags"],
        keys=given["keys"],
        reasons=given["reasons"],
        message_ids=given["ids"],
        since_ms=given["since"],
        until_ms=given["until"],
    )


@dead_letters.command("list", short_help="Groups with dead letters, or the dead letters of one.")
@click.argument("group", type=NAME, required=False)
@name_server_option
@_selection_options
@click.option(
    "--count",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Show so many at most; the newest.",
)
@timeout_option
@json_option
@click.pass_context
def list_dead(
    ctx: click.Context,
    /,
    group: str | None,
    name_server: str,
    count: int,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Groups that have dead letters; with GROUP, its dead letters one by one.

    \b
    cometmq dead-letters list
    cometmq dead-letters list billing --topic Orders --since 2026-11-22T10:00
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.net.loop import run

    if group is None:
        print_listing(
            run(_groups(name_server, timeout_s)), as_json=as_json, empty="nothing has died"
        )
        return
    found, total = run(_newest(name_server, timeout_s, group, given, count))
    print_listing(
        [_row(death, as_json) for death in found],
        as_json=as_json,
        empty=f"no dead letter of {group} is selected",
    )
    if total > len(found):
        note(f"the newest {len(found):,} of {total:,}; --count shows more")


async def _groups(name_server: str, timeout_s: float) -> list[dict[str, Any]]:
    from cometmq.client.admin.redrive import dead_groups

    async with admin_client(name_server, timeout_s) as admin:
        topics = await admin.topic_list(include_system=True)
        found = await dead_groups(admin.queue_reader(), topics)
    return [{"group": name, "messages": count} for name, count in found.items() if count]


async def _newest(
    name_server: str, timeout_s: float, group: str, given: dict[str, Any], count: int
) -> "tuple[list[Death], int]":
    from collections import deque

    newest: deque[Death] = deque(maxlen=count)
    total = 0
    async with admin_client(name_server, timeout_s) as admin:
        letters = _letters(admin, group, given)
        await _check_group(admin, group)
        async for death, _ in letters.walk(_selection(given)):
            newest.append(death)
            total += 1
    return sorted(newest, key=lambda death: (death.died_ms, death.position)), total


def _letters(admin: Any, group: str, given: dict[str, Any]) -> Any:
    from cometmq.client.admin.redrive import DeadLetters
    from cometmq.core.retry.dead_letters import REASON_PROPERTIES

    return DeadLetters(
        admin.queue_reader(), group, given.get("reason_properties") or REASON_PROPERTIES
    )


async def _check_group(admin: Any, group: str) -> None:
    """Tell a group without dead letters from a misspelt one."""
    from cometmq.model.names import dlq_topic

    if not await admin.queue_reader().queues(dlq_topic(group)):
        await require_group(admin, group)


def _utc(time_ms: int) -> str:
    return datetime.fromtimestamp(time_ms / 1000, tz=UTC).isoformat(timespec="milliseconds")


def _row(death: "Death", as_json: bool) -> dict[str, Any]:
    row: dict[str, Any] = {
        "died": _utc(death.died_ms),
        "topic": death.origin_topic,
        "tags": death.tags,
        "keys": list(death.keys),
        "refused": death.times_refused,
        "reason": death.reason,
        "message_id": death.message_id,
    }
    if as_json:
        row |= {
            "origin_message_id": death.origin_message_id,
            "place": death.position,
            "body_bytes": death.body_bytes,
        }
    return row


@dead_letters.command("show", short_help="All of one dead letter.")
@click.argument("group", type=NAME)
@click.argument("message_id", type=NAME)
@name_server_option
@timeout_option
@json_option
@click.pass_context
def show_dead(
    ctx: click.Context,
    group: str,
    message_id: str,
    name_server: str,
    timeout_s: float,
    as_json: bool,
) -> int:
    """One dead letter of GROUP with its properties and body; MESSAGE_ID as `list` prints it."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.exit_codes import NOT_FOUND
    from cometmq.cli.terminal.output import note, print_json
    from cometmq.core.retry.dead_letters import DeathSelection
    from cometmq.net.loop import run

    async def find() -> "list[tuple[Death, ReceivedMessage]]":
        selection = DeathSelection(message_ids=(message_id,))
        async with admin_client(name_server, timeout_s) as admin:
            await _check_group(admin, group)
            return [pair async for pair in _letters(admin, group, {}).walk(selection)]

    found = run(find())
    if not found:
        note(f"no dead letter of {group} has the id {message_id}")
        return NOT_FOUND
    rows = [_full(death, message) for death, message in found]
    if as_json:
        print_json(rows)
        return 0
    for row in rows:
        for name, value in row.items():
            if name == "properties":
                for key in sorted(value):
                    print(f"property    {key} = {value[key]}")
            elif name != "body":
                print(f"{name.replace('_', ' '):<20} {value}".rstrip())
        print(f"body\n{row['body']}")
    return 0


def _full(death: "Death", message: "ReceivedMessage") -> dict[str, Any]:
    row = _row(death, as_json=True)
    row["keys"] = " ".join(death.keys)
    return row | {
        "born": _utc(message.born_timestamp_ms),
        "born_host": message.born_host,
        "properties": message.properties,
        "body": message.body.decode("utf-8", "backslashreplace"),
    }


@dead_letters.command("redrive", short_help="Send dead letters again.")
@click.argument("group", type=NAME)
@name_server_option
@_selection_options
@click.option(
    "--to",
    "target",
    type=click.Choice(["group", "origin"]),
    default="group",
    show_default=True,
    help="Only to this group, or to the topics they were first sent to, for every group.",
)
@click.option("--preview", is_flag=True, help="Say what would be sent, send nothing.")
@click.option(
    "--rate",
    type=Finite(min=0, min_open=True),
    metavar="N",
    help="Send at most N messages a second.",
)
@click.option(
    "--ledger",
    metavar="DIR",
    type=click.Path(file_okay=False),
    default="cometmq-redrive",
    show_default=True,
    help="Where is kept what was sent.",
)
@click.option("-y", "--yes", is_flag=True, help="Skip the confirmation.")
@timeout_option
@json_option
@click.pass_context
def redrive(
    ctx: click.Context,
    /,
    group: str,
    name_server: str,
    target: str,
    preview: bool,
    rate: float | None,
    ledger: str,
    yes: bool,
    timeout_s: float,
    as_json: bool,
    **given: Any,
) -> None:
    """Send the selected dead letters of GROUP again, in their order.

    They go to the group's retry topic, so that no other group gets them again, and their tries
    count from the start. They also stay in the dead-letter topic; the ledger knows which were sent,
    and the same command sends nothing twice.

    \b
    cometmq dead-letters redrive billing --preview
    cometmq dead-letters redrive billing --topic Orders --rate 100
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_json, print_listing
    from cometmq.client.admin.redrive import Redrive
    from cometmq.client.admin.redrive_ledger import RedriveLedger
    from cometmq.net.env import SystemClock
    from cometmq.net.loop import run

    async def work() -> "tuple[RedrivePlan, int | None]":
        book = RedriveLedger.open(ledger, group, target)
        async with admin_client(name_server, timeout_s) as admin:
            await _check_group(admin, group)
            one = Redrive(
                _letters(admin, group, given),
                book,
                to_origin=target == "origin",
                rate=rate,
                clock=SystemClock(),
            )
            plan = await one.plan(_selection(given))
            if not as_json:
                print_listing(_targets(plan), as_json=False, empty="no dead letter is to be sent")
                if plan.without_origin:
                    note(f"{plan.without_origin:,} do not tell their first topic and stay")
            if preview or not plan.count:
                return plan, None
            if not yes:
                confirm(f"Send {_messages(plan.count)} again?")
            return plan, await _send(ctx, one, plan)

    plan, sent = run(work())
    facts = {
        "messages": plan.count,
        "sent": sent or 0,
        "sent_before": plan.sent_before,
        "without_origin": plan.without_origin,
    }
    if as_json:
        print_json(facts | {"preview": preview, "targets": _targets(plan)})
    elif sent is None:
        note(
            f"{plan.sent_before:,} sent before"
            + ("; nothing was sent: a preview" if preview else "")
        )
    else:
        print(f"sent {_messages(sent)}; {plan.sent_before:,} sent before")


async def _send(ctx: click.Context, one: Any, plan: "RedrivePlan") -> int:
    from cometmq.cli.terminal.output import note, progress

    done = 0

    def note_progress(count: int) -> None:
        nonlocal done
        done = count
        bar.update(count)

    with progress("sent again", total=plan.count, quiet=is_quiet(ctx)) as (bar,):
        try:
            sent: int = await one.send(plan, note_progress)
        except BaseException:
            many = _messages(plan.count)
            note(f"about {done:,} of {many} were sent; the same command sends the others")
            raise
    return sent


def _messages(count: int) -> str:
    return f"{count:,} message{'s' if count != 1 else ''}"


def _targets(plan: "RedrivePlan") -> list[dict[str, Any]]:
    return [
        {
            "first_topic": origin,
            "target": target,
            "messages": count,
            "body_bytes": size,
            "first_died": _utc(first),
            "last_died": _utc(last),
        }
        for (origin, target), (count, size, first, last) in sorted(plan.by_target.items())
    ]
