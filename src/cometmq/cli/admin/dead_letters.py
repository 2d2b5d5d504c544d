"""`cometmq dead-letters`: lists the dead letters of a group and sends a selection of them again.

Job: options, listings, the question before sending, progress. It must not read or send messages;
`cometmq.client.admin.redrive` does.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from cometmq.cli.terminal.bodies import body_text
from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace, namespace_option
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
    from cometmq.client.admin.redrive import Redrive, RedrivePlan
    from cometmq.client.message.message import ReceivedMessage
    from cometmq.core.retry.dead_letters import Death, DeathSelection

__all__ = ["Redriven", "dead_letters", "redrive_options", "redrive_plans"]

F = TypeVar("F", bound=Callable[..., Any])


@click.group("dead-letters", short_help="List a group's dead letters and send them again.")
def dead_letters() -> None:
    """List a group's dead letters and send them again."""


def _selection_options(function: F) -> F:
    """Add the options that select dead letters; a letter must meet all of them."""
    for option in reversed(
        (
            click.option(
                "--topic",
                "topics",
                type=CLUSTER_NAME,
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


def _selection(options: dict[str, Any]) -> "DeathSelection":
    from cometmq.core.retry.dead_letters import DeathSelection

    return DeathSelection(
        topics=options["topics"],
        tags=options["tags"],
        keys=options["keys"],
        reasons=options["reasons"],
        message_ids=options["ids"],
        since_ms=options["since"],
        until_ms=options["until"],
    )


@dead_letters.command("list", short_help="Groups with dead letters, or the dead letters of one.")
@click.argument("group", type=CLUSTER_NAME, required=False)
@name_server_option
@namespace_option
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
    **options: Any,
) -> None:
    """List the groups that have dead letters; with GROUP, its dead letters one by one.

    \b
    cometmq dead-letters list
    cometmq dead-letters list billing --topic Orders --since 2026-11-22T10:00
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_listing
    from cometmq.listings.dead_letters import death_row
    from cometmq.net.loop import run

    if group is None:
        print_listing(
            run(_groups(name_server, timeout_s)), as_json=as_json, empty="nothing has died"
        )
        return
    newest, total = run(_newest(name_server, timeout_s, group, options, count))
    print_listing(
        [death_row(death, namespace(), is_full=as_json) for death in newest],
        as_json=as_json,
        empty=f"no dead letter of {group} is selected",
    )
    if total > len(newest):
        note(f"the newest {len(newest):,} of {total:,}; --count shows more")


async def _groups(name_server: str, timeout_s: float) -> list[dict[str, Any]]:
    from cometmq.listings.dead_letters import dead_group_rows

    async with admin_client(name_server, timeout_s) as admin:
        return await dead_group_rows(admin, namespace())


async def _newest(
    name_server: str, timeout_s: float, group: str, options: dict[str, Any], count: int
) -> "tuple[list[Death], int]":
    from cometmq.listings.dead_letters import newest_deaths, require_dead_group

    async with admin_client(name_server, timeout_s) as admin:
        letters = _letters(admin, group, options)
        await require_dead_group(admin, group)
        return await newest_deaths(letters, _selection(options), count)


def _letters(admin: Any, group: str, options: dict[str, Any]) -> Any:
    from cometmq.client.admin.redrive import DeadLetters
    from cometmq.core.retry.dead_letters import REASON_PROPERTIES

    return DeadLetters(
        admin.queue_reader(), group, options.get("reason_properties") or REASON_PROPERTIES
    )


@dead_letters.command("show", short_help="All of one dead letter.")
@click.argument("group", type=CLUSTER_NAME)
@click.argument("message_id", type=NAME)
@name_server_option
@namespace_option
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
    """Show a dead letter of GROUP with its properties and body; `list` prints MESSAGE_ID."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.exit_codes import NOT_FOUND
    from cometmq.cli.terminal.output import note, print_json
    from cometmq.core.retry.dead_letters import DeathSelection
    from cometmq.listings.dead_letters import require_dead_group
    from cometmq.net.loop import run

    async def matching() -> "list[tuple[Death, ReceivedMessage]]":
        selection = DeathSelection(message_ids=(message_id,))
        async with admin_client(name_server, timeout_s) as admin:
            await require_dead_group(admin, group)
            return [pair async for pair in _letters(admin, group, {}).walk(selection)]

    matches = run(matching())
    if not matches:
        note(f"no dead letter of {group} has the id {message_id}")
        return NOT_FOUND
    rows = [_full(death, message) for death, message in matches]
    if as_json:
        print_json(rows)
        return 0
    bodies = {death.position: message.body for death, message in matches}
    for row in rows:
        for name, value in row.items():
            if name == "properties":
                for key in sorted(value):
                    print(f"property    {key} = {value[key]}")
            elif name not in ("body", "body_base64"):
                print(f"{name.replace('_', ' '):<20} {value}".rstrip())
        print(f"body\n{body_text(bodies[row['position']])}")
    return 0


def _full(death: "Death", message: "ReceivedMessage") -> dict[str, Any]:
    from cometmq.listings.dead_letters import death_row
    from cometmq.listings.messages import body_fields
    from cometmq.listings.times import utc

    row = death_row(death, namespace(), is_full=True)
    row["keys"] = " ".join(death.keys)
    return row | {
        "born": utc(message.born_timestamp_ms),
        "born_host": message.born_host,
        "properties": message.properties,
        **body_fields(message.body),
    }


def redrive_options(function: F) -> F:
    """Add the options of a re-drive, which two commands share."""
    for option in reversed(
        (
            click.option(
                "--to-origin",
                is_flag=True,
                help="Send to the topics they were first sent to, for every group.",
            ),
            click.option(
                "--again", is_flag=True, help="Send also what an earlier run has sent again."
            ),
            click.option("--preview", is_flag=True, help="Count messages; send nothing."),
            click.option(
                "--rate",
                type=Finite(min=0, min_open=True),
                metavar="N",
                help="Send at most N messages a second.",
            ),
            click.option("-y", "--yes", is_flag=True, help="Skip the confirmation."),
        )
    ):
        function = option(function)
    return function


@dead_letters.command("redrive", short_help="Send dead letters again.")
@click.argument("group", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@_selection_options
@redrive_options
@timeout_option
@json_option
@click.pass_context
def redrive(
    ctx: click.Context,
    /,
    group: str,
    name_server: str,
    to_origin: bool,
    again: bool,
    preview: bool,
    rate: float | None,
    yes: bool,
    timeout_s: float,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the selected dead letters of GROUP again, in their order.

    They go to the group's retry topic, so that no other group gets them again, and their tries
    count from the start. They also stay in the dead-letter topic. The topic `%SENT%` and the
    group's name records which were sent: no run sends them twice, wherever it runs.

    \b
    cometmq dead-letters redrive billing --preview
    cometmq dead-letters redrive billing --topic Orders --rate 100
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import note, print_json
    from cometmq.client.admin.redrive import Redrive
    from cometmq.listings.dead_letters import require_dead_group
    from cometmq.net.env import SystemClock
    from cometmq.net.loop import run

    async def work() -> Redriven:
        async with admin_client(name_server, timeout_s) as admin:
            await require_dead_group(admin, group)
            sending = Redrive(
                _letters(admin, group, options),
                admin,
                to_origin=to_origin,
                is_repeated=again,
                rate=rate,
                clock=SystemClock(),
            )
            plan = await sending.plan(_selection(options))
            return await redrive_plans(
                ctx, [(sending, plan)], preview=preview, yes=yes, as_json=as_json
            )

    done = run(work())
    if as_json:
        print_json(done.facts | {"preview": preview, "targets": done.targets})
    elif done.sent is None:
        note(
            f"{done.sent_before:,} sent before"
            + ("; nothing was sent: a preview" if preview else "")
        )
    else:
        print(f"sent {_messages(done.sent)}; {done.sent_before:,} sent before")


class Redriven:
    """What a re-drive planned and sent; ``sent`` is None where it sent nothing."""

    def __init__(self, plans: "Sequence[RedrivePlan]") -> None:
        self.count = sum(plan.count for plan in plans)
        self.sent_before = sum(plan.sent_before for plan in plans)
        self.without_origin = sum(plan.without_origin for plan in plans)
        self.targets = [row for plan in plans for row in _targets(plan)]
        self.sent: int | None = None

    @property
    def facts(self) -> dict[str, Any]:
        """The counts for JSON."""
        return {
            "messages": self.count,
            "sent": self.sent or 0,
            "sent_before": self.sent_before,
            "without_origin": self.without_origin,
        }


async def redrive_plans(
    ctx: click.Context,
    plans: "Sequence[tuple[Redrive, RedrivePlan]]",
    *,
    preview: bool,
    yes: bool,
    as_json: bool,
) -> Redriven:
    """List the plans of one group or several, ask, and send."""
    from cometmq.cli.terminal.output import note, print_listing

    done = Redriven([plan for _, plan in plans])
    if not as_json:
        print_listing(done.targets, as_json=False, empty="no dead letter is to be sent")
        if done.without_origin:
            note(f"{done.without_origin:,} do not tell their first topic and stay")
    if preview or not done.count:
        return done
    if not yes:
        confirm(f"Send {_messages(done.count)} again?")
    done.sent = await _send(ctx, plans, done.count)
    return done


async def _send(
    ctx: click.Context, plans: "Sequence[tuple[Redrive, RedrivePlan]]", count: int
) -> int:
    from cometmq.cli.terminal.output import note, progress

    before = done = 0

    def note_progress(sent: int) -> None:
        nonlocal done
        done = before + sent
        bar.update(done)

    with progress("sent again", total=count, quiet=is_quiet(ctx)) as (bar,):
        try:
            for sending, plan in plans:
                before += await sending.send(plan, note_progress)
        except BaseException:
            many = _messages(count)
            note(f"about {done:,} of {many} were sent; the same command sends the others")
            raise
    return before


def _messages(count: int) -> str:
    return f"{count:,} message{'s' if count != 1 else ''}"


def _targets(plan: "RedrivePlan") -> list[dict[str, Any]]:
    from cometmq.listings.times import utc

    return [
        {
            "first_topic": namespace().unwrap(origin),
            "target": namespace().unwrap(target),
            "messages": count,
            "body_bytes": size,
            "first_died": utc(first),
            "last_died": utc(last),
        }
        for (origin, target), (count, size, first, last) in sorted(plan.by_target.items())
    ]
