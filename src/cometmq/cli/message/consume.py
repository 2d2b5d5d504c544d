"""`cometmq consume`: prints the messages of a topic, as bodies or as JSON lines."""

import signal
import sys
import time
from typing import TYPE_CHECKING, Final

import click

from cometmq.cli.terminal.bodies import print_body
from cometmq.cli.terminal.names import complete_names
from cometmq.cli.terminal.namespace import namespace, namespace_option
from cometmq.cli.terminal.options import (
    is_quiet,
    name_server_option,
    security_options,
    set_up_logging,
)
from cometmq.cli.terminal.output import json_text, note
from cometmq.cli.terminal.streams import utf8
from cometmq.cli.terminal.values import NAME, Finite, boundary_or_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Sequence

    from cometmq.client import PullConsumer
    from cometmq.client.message.message import ReceivedMessage
    from cometmq.model import MessageQueue

__all__ = ["consume"]

ONLOOKER_GROUP: Final = "TOOLS_CONSUMER"
"""RocketMQ's group for tools: every broker has it, also one that creates no groups by itself."""
POLL_MS: Final = 500
"""--wait and --until-end are checked this often; messages are printed at once."""


@click.command(short_help="Print the messages of a topic as they arrive.")
@click.argument("topic", type=NAME, shell_complete=complete_names)
@name_server_option
@namespace_option
@click.option(
    "-g",
    "--group",
    type=NAME,
    help="Join this consumer group and commit what was printed; without it nothing is committed.",
)
@click.option(
    "-t", "--tags", callback=utf8, default="*", show_default=True, help="Tag expression: 'A || B'."
)
@click.option(
    "--sql", callback=utf8, help="SQL92 filter over properties: \"amount > 100 AND TAGS = 'new'\"."
)
@click.option(
    "--from",
    "start",
    default="last",
    show_default=True,
    metavar="first|last|TIME",
    help="Where to begin; TIME is 1h ago as 1h, 2026-01-31T12:00:00+00:00 or ms since 1970. "
    "A group with stored offsets goes on from there.",
)
@click.option(
    "--sandbox",
    type=NAME,
    help="Only messages of this sandbox, main for those without one; with --group, as a consumer "
    "of the group in this sandbox.",
)
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many messages.")
@click.option("--until-end", is_flag=True, help="Stop where the topic ends now. Not with --group.")
@click.option(
    "--wait",
    "wait_s",
    type=Finite(min=0.1),
    metavar="SECONDS",
    help="Stop when nothing came for so long.",
)
@click.option("--json", "as_json", is_flag=True, help="One JSON object per line.")
@click.option(
    "--format",
    "line_format",
    metavar="TEXT",
    help=r"Print this for each message: '%t %p %o %k %s\n'; `--format help` lists the fields.",
)
@click.option(
    "--queue",
    "queue_names",
    multiple=True,
    metavar="BROKER:ID",
    help="Only this queue; may be repeated. Not with --group.",
)
@click.option(
    "--offset",
    "queue_offset",
    type=click.IntRange(min=0),
    help="Begin at this queue offset; with --queue.",
)
@click.pass_context
def consume(
    ctx: click.Context,
    topic: str,
    name_server: str,
    group: str | None,
    tags: str,
    sql: str | None,
    start: str,
    sandbox: str | None,
    count: int | None,
    until_end: bool,
    wait_s: float | None,
    as_json: bool,
    line_format: str | None,
    queue_names: tuple[str, ...],
    queue_offset: int | None,
) -> int:
    """Print the messages of TOPIC as they come: the body, or with --json everything.

    Ends with Ctrl-C, SIGTERM, --count, --until-end or --wait; exit code 4 when --count was asked
    for and fewer came. A terminal shows a body that is no text as base64, and so does --json, in
    `body_base64`; a file or a pipe gets each body as it is, with a line end behind it.

    \b
    cometmq consume Orders --from first --until-end
    cometmq consume Orders --group auditors --tags 'new || changed' --json
    cometmq consume Orders --sql "amount > 100 AND region = 'eu'"
    cometmq consume Orders --queue broker-a:0 --offset 1500 --format '%o %k %s\\n'
    """
    set_up_logging(ctx)
    from cometmq.cli.message.line_format import FIELDS, parse_format

    if line_format == "help":
        for name, (meaning, _) in FIELDS.items():
            print(f"%{name}  {meaning}")
        return 0
    if line_format is not None and as_json:
        raise click.UsageError("--format and --json do not go together")
    if queue_names and group:
        raise click.UsageError("--queue does not go with --group, whose members share the queues")
    if queue_offset is not None and not queue_names:
        raise click.UsageError("--offset needs --queue BROKER:ID: each queue has its own offsets")
    if until_end and group:
        raise click.UsageError(
            "--until-end looks at every queue, a group holds only some; use --wait"
        )
    if sql is not None and tags != "*":
        raise click.UsageError("--tags and --sql do not go together; write TAGS = 'A' in --sql")
    from cometmq.cli.terminal.exit_codes import NOT_FOUND
    from cometmq.client.base.sandbox import check_sandbox
    from cometmq.core.filter.subscription import Sql92
    from cometmq.net.loop import run

    wanted = tags if sql is None else Sql92(sql)
    reading = _Reading(
        topic, wanted, boundary_or_ms(start, "--from"), count, until_end, wait_s, as_json
    )
    reading.is_quiet = is_quiet(ctx)
    reading.sandbox = check_sandbox(sandbox)
    reading.line = None if line_format is None else parse_format(line_format)
    reading.queue_names, reading.queue_offset = queue_names, queue_offset
    if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
        # A shell starts background jobs like this, and the loop would then ignore SIGTERM too.
        signal.signal(signal.SIGINT, signal.default_int_handler)
    run(
        _stoppable(
            reading.in_group(name_server, group) if group else reading.onlooking(name_server)
        )
    )
    return NOT_FOUND if count is not None and reading.printed < count else 0


async def _stoppable(reading: "Coroutine[None, None, None]") -> None:
    """Let SIGTERM end the command as Ctrl-C does: the printed messages are committed."""
    # By now the loop has its own handler of Ctrl-C, which cancels this task.
    before = signal.signal(signal.SIGTERM, signal.getsignal(signal.SIGINT))
    try:
        await reading
    finally:
        signal.signal(signal.SIGTERM, before)


class _Reading:
    """One run of the command: prints messages until a limit is reached."""

    def __init__(
        self,
        topic: str,
        wanted: str,
        start: str | int,
        count: int | None,
        until_end: bool,
        wait_s: float | None,
        as_json: bool,
    ) -> None:
        self.printed = 0
        self.is_quiet = False
        self.sandbox: str | None = None
        self.line: Callable[[ReceivedMessage], bytes] | None = None
        self.queue_names: tuple[str, ...] = ()
        self.queue_offset: int | None = None
        self._topic = topic
        self._wanted = wanted
        self._start = start
        self._count = count
        self._until_end = until_end
        self._wait_s = wait_s
        self._as_json = as_json

    async def in_group(self, name_server: str, group: str) -> None:
        """Consume as a member of the group, and commit."""
        from asyncio import CancelledError

        from cometmq.client import PullConsumer

        async with PullConsumer(
            group,
            {self._topic: self._wanted},
            name_server=name_server,
            consume_from=self._start,
            namespace=namespace().name,
            sandbox=self.sandbox,
            **security_options(),
        ) as consumer:
            # A program may wait for its topic; at a terminal the name is more likely misspelt.
            await consumer.fetch_queues(self._topic)
            self._say_waiting(f"group {group} goes on where it was; a new group begins", "")
            try:
                await self._read(consumer, {})
            except CancelledError:
                # Only waits are interrupted, so every message from a poll is printed.
                await consumer.shutdown()
                raise

    async def onlooking(self, name_server: str) -> None:
        """Read every queue; no group's offsets change."""
        from cometmq.client import PullConsumer

        consumer = PullConsumer(
            ONLOOKER_GROUP,
            name_server=name_server,
            consume_from=self._start,
            auto_commit=False,
            namespace=namespace().name,
            **security_options(),
        )
        async with consumer:
            queues = self._chosen(await consumer.fetch_queues(self._topic))
            ends = await consumer.end_offsets(queues) if self._until_end else {}
            begins = await self._begins(consumer, queues)
            await consumer.assign(queues, self._wanted)
            for queue, queue_offset in begins.items():
                await consumer.seek(queue, queue_offset)
            self._say_waiting(
                f"reading {len(queues)} queues", "; --from first prints the stored ones"
            )
            await self._read(consumer, ends, self.sandbox)

    def _say_waiting(self, beginning: str, advice: str) -> None:
        """Say what is printed and what ends the command, unless it ends by itself soon."""
        if self.is_quiet or self._until_end:
            return
        where = {"first": "at the first message", "last": "at the end" + advice}
        end = "Ctrl-C ends" if self._wait_s is None else f"{self._wait_s:g} s without a message end"
        note(
            f"waiting for messages of {self._topic}: {beginning} "
            f"{where.get(str(self._start), 'at the time given')}. {end} this"
        )

    def _chosen(self, queues: "Sequence[MessageQueue]") -> "Sequence[MessageQueue]":
        """The queues that --queue names, or all."""
        if not self.queue_names:
            return queues
        table = {f"{queue.broker_name}:{queue.queue_id}": queue for queue in queues}
        for name in self.queue_names:
            if name not in table:
                raise click.UsageError(
                    f"{self._topic} has no queue {name}; it has {', '.join(sorted(table))}"
                )
        return [table[name] for name in self.queue_names]

    async def _begins(
        self, consumer: "PullConsumer", queues: "Sequence[MessageQueue]"
    ) -> "dict[MessageQueue, int]":
        if self.queue_offset is not None:
            return dict.fromkeys(queues, self.queue_offset)
        if isinstance(self._start, int):
            return await consumer.offsets_for_times(dict.fromkeys(queues, self._start))
        if self._start == "first":
            return await consumer.begin_offsets(queues)
        return await consumer.end_offsets(queues)

    async def _read(
        self,
        consumer: "PullConsumer",
        ends: "dict[MessageQueue, int]",
        only: str | None = None,
    ) -> None:
        """Print what the consumer polls; ``only`` is a sandbox, or None for all messages."""
        from cometmq.client.base.sandbox import MAIN

        last_come = time.monotonic()
        while not await self._is_done(consumer, ends):
            left = 1000 if self._count is None else min(1000, self._count - self.printed)
            messages = await consumer.poll(POLL_MS, left)
            for message in messages:
                is_before_end = message.queue_offset < ends.get(message.message_queue, sys.maxsize)
                if is_before_end and only in (None, message.sandbox or MAIN):
                    self._print(message)
            sys.stdout.flush()
            now = time.monotonic()
            if messages:
                last_come = now
            elif self._wait_s is not None and now - last_come >= self._wait_s:
                return

    async def _is_done(self, consumer: "PullConsumer", ends: "dict[MessageQueue, int]") -> bool:
        if self._count is not None and self.printed >= self._count:
            return True
        if not self._until_end:
            return False
        for queue, end in ends.items():
            if await consumer.position(queue) < end:
                return False
        return True

    def _print(self, message: "ReceivedMessage") -> None:
        self.printed += 1
        if self.line is not None:
            sys.stdout.buffer.write(self.line(message))
            return
        if not self._as_json:
            print_body(message.body)
            return
        from cometmq.listings.messages import body_fields

        queue = message.message_queue
        print(
            json_text(
                {
                    "topic": message.topic,
                    "broker": queue.broker_name,
                    "queue_id": queue.queue_id,
                    "queue_offset": message.queue_offset,
                    "message_id": message.message_id,
                    "tags": message.tags,
                    "keys": message.keys,
                    "properties": message.properties,
                    "born_timestamp_ms": message.born_timestamp_ms,
                    "store_timestamp_ms": message.store_timestamp_ms,
                    "reconsume_times": message.reconsume_times,
                    **body_fields(message.body),
                }
            )
        )
