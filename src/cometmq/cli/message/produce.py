"""`cometmq produce`: sends one message, or one per line of a file or of stdin."""

import sys
from collections import deque
from collections.abc import AsyncIterator, Callable
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.terminal.names import complete_names
from cometmq.cli.terminal.namespace import namespace, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    is_quiet,
    json_option,
    name_server_option,
    security_options,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.streams import argument_bytes, utf8
from cometmq.cli.terminal.values import GIVEN, NAME, Finite, duration_ms, moment_ms

if TYPE_CHECKING:
    from cometmq.model import Message, SendResult

__all__ = ["produce"]

IN_FLIGHT_MAX: Final = 512
LINGER_MS_MAX: Final = 60_000
"""A lingering message is only in this process's memory."""


@click.command(short_help="Send messages: one from the command line, or one per line of a file.")
@click.argument("topic", type=NAME, shell_complete=complete_names)
@click.argument("body", required=False)
@name_server_option
@namespace_option
@click.option(
    "-f",
    "--file",
    "path",
    type=click.Path(allow_dash=True),
    help="One body per line; empty lines are left out.",
)
@click.option("-t", "--tag", "tag", callback=utf8, help="The message's tag.")
@click.option(
    "-k",
    "--key",
    "keys",
    type=GIVEN,
    callback=utf8,
    multiple=True,
    help="A business key; may be repeated.",
)
@click.option(
    "-p",
    "--property",
    "properties",
    callback=utf8,
    multiple=True,
    metavar="NAME=VALUE",
    help="A property of your own; may be repeated.",
)
@click.option(
    "-g",
    "--message-group",
    type=GIVEN,
    callback=utf8,
    help="Messages of one group keep their order.",
)
@click.option(
    "--delay-level",
    type=click.IntRange(0, 18),
    default=0,
    help="Deliver later: 1 is 1 s, 18 is 2 h; 0 at once.",
)
@click.option(
    "--delay", "delay", metavar="TIME", help="Deliver so much later: 1500ms, 10s, 5m, 2h or 30d."
)
@click.option(
    "--deliver-at",
    "deliver_at",
    metavar="TIME",
    help="Deliver at an exact time: 2026-12-24T18:00 (local, or with a zone), or ms since 1970.",
)
@click.option("--sandbox", type=NAME, help="Mark the messages as those of this sandbox.")
@click.option("--count", type=click.IntRange(min=1), default=1, help="Send BODY so many times.")
@click.option(
    "--linger",
    "linger_ms",
    type=Finite(min=0, max=LINGER_MS_MAX),
    help="Batch for so many ms; at the end of the input the last batch goes at once.",
)
@timeout_option
@json_option
@click.pass_context
def produce(
    ctx: click.Context,
    topic: str,
    body: str | None,
    name_server: str,
    path: str | None,
    tag: str | None,
    keys: tuple[str, ...],
    properties: tuple[str, ...],
    message_group: str | None,
    delay_level: int,
    delay: str | None,
    deliver_at: str | None,
    sandbox: str | None,
    count: int,
    linger_ms: float | None,
    timeout_s: float,
    as_json: bool,
) -> int:
    """Send messages to TOPIC: BODY, or one message per line of a file.

    \b
    cometmq produce Orders '{"id": 7}' --tag new --key 7
    cometmq produce Orders --file orders.jsonl --linger 5
    echo hello | cometmq produce Orders --file -
    """
    set_up_logging(ctx)
    if (body is None) == (path is None):
        raise click.UsageError("give either BODY or --file PATH ('-' is stdin)")
    from cometmq.cli.terminal.lines import line_batches
    from cometmq.cli.terminal.output import note
    from cometmq.model import Message
    from cometmq.net.loop import run

    own = _pairs(properties)
    if sum((delay_level > 0, delay is not None, deliver_at is not None)) > 1:
        raise click.UsageError("give one of --delay-level, --delay and --deliver-at")
    delay_ms = None if delay is None else _delay_ms(delay)
    deliver_time_ms = None if deliver_at is None else _time_ms(deliver_at)

    def message(text: bytes) -> Message:
        return Message(
            topic,
            text,
            tags=tag,
            keys=keys,
            properties=own,
            delay_level=delay_level,
            delay_ms=delay_ms,
            deliver_time_ms=deliver_time_ms,
            message_group=message_group,
        )

    is_new = run(_is_new(name_server, topic, timeout_s))
    source: Any = nullcontext() if path is None else _lines(path)
    with source as lines:
        results = run(
            _send(
                name_server,
                message,
                line_batches(lines) if body is None else _repeated(argument_bytes(body), count),
                linger_ms,
                sandbox,
                round(timeout_s * 1000),
                keep=as_json or (body is not None and count <= 20),
                quiet=is_quiet(ctx),
            )
        )
    if is_new and results.sent:
        made = namespace().wrap(topic)
        note(
            f"topic {made} did not exist, and a broker made it for this message; "
            f"if the name is a typing error: cometmq topic delete {made}"
        )
    return _report(results, topic, as_json=as_json)


async def _is_new(name_server: str, topic: str, timeout_s: float) -> bool:
    """Whether the name servers know no such topic; False when they cannot be asked."""
    from cometmq.errors import CometError, NoRoute

    try:
        async with admin_client(name_server, timeout_s) as admin:
            await admin.topic_route(namespace().wrap(topic))
    except NoRoute:
        return True
    except CometError:
        return False  # the send waits for the name server, and says what is wrong
    return False


def _delay_ms(text: str) -> int:
    found = duration_ms(text)
    if found is None:
        raise click.UsageError(
            f"--delay {text!r} is no time: a whole number and ms, s, m, h or d, as 1500ms or 10s"
        )
    return found


def _time_ms(text: str) -> int:
    found = moment_ms(text)
    if found is None:
        raise click.UsageError(
            f"--deliver-at {text!r} is no time: 2026-12-24T18:00:00.500+01:00, or ms since 1970"
        )
    return found


def _pairs(items: tuple[str, ...]) -> dict[str, str]:
    pairs: dict[str, str] = {}
    for item in items:
        name, separator, value = item.partition("=")
        if not separator or not name:
            raise click.UsageError(f"--property {item!r} is not NAME=VALUE")
        if name in pairs:
            raise click.UsageError(
                f"--property {name} is given twice, as {pairs[name]!r} and {value!r}; "
                "a message holds one value of a name"
            )
        pairs[name] = value
    return pairs


def _lines(path: str) -> Any:
    try:
        return click.open_file(path, "rb")
    except OSError as error:
        raise click.UsageError(f"cannot read {path}: {error.strerror}") from None


async def _repeated(body: bytes, count: int) -> AsyncIterator[list[bytes]]:
    for start in range(0, count, IN_FLIGHT_MAX):
        yield [body] * min(IN_FLIGHT_MAX, count - start)


class _Results:
    """The outcome of the sends: every result if results are listed, otherwise their number."""

    def __init__(self) -> None:
        self.sent = 0
        self.failures: list[Exception] = []
        self.listed: list[SendResult] = []


async def _send(
    name_server: str,
    message: "Callable[[bytes], Message]",
    batches: AsyncIterator[list[bytes]],
    linger_ms: float | None,
    sandbox: str | None,
    timeout_ms: int,
    *,
    keep: bool,
    quiet: bool,
) -> _Results:
    from cometmq.cli.terminal.output import note, progress
    from cometmq.client import Producer
    from cometmq.errors import CometError

    results = _Results()
    waiting: deque[Any] = deque()

    async def settle() -> None:
        try:
            result = await waiting.popleft()
        except CometError as error:
            results.failures.append(error)
        else:
            results.sent += 1
            if keep:
                results.listed.append(result)

    producer = Producer(
        "cometmq_cli",
        name_server=name_server,
        linger_ms=linger_ms,
        timeout_ms=timeout_ms,
        namespace=namespace().name,
        sandbox=sandbox,
        **security_options(),
    )
    with progress("sent", quiet=quiet) as (bar,):
        async with producer:
            try:
                async for batch in batches:
                    for body in batch:
                        try:
                            waiting.append(producer.send_nowait(message(body)))
                        except CometError as error:
                            results.failures.append(error)
                        while len(waiting) >= IN_FLIGHT_MAX:
                            await settle()
                        bar.update(results.sent)
                await producer.flush()
                while waiting:
                    await settle()
                    bar.update(results.sent)
            except BaseException:
                sent = results.sent + sum(map(_is_sent, waiting))
                unknown = sum(not future.done() for future in waiting)
                note(f"cometmq: ended early: {sent:,} messages were sent, {unknown:,} on their way")
                raise
    return results


def _is_sent(future: Any) -> bool:
    return future.done() and not future.cancelled() and future.exception() is None


def _report(results: _Results, topic: str, *, as_json: bool) -> int:
    from cometmq.cli.terminal.exit_codes import exit_code
    from cometmq.cli.terminal.output import note, print_listing

    rows = [
        {
            "status": result.status.name,
            "message_id": result.message_id,
            "topic": result.message_queue.topic,
            "broker": result.message_queue.broker_name,
            "queue_id": result.message_queue.queue_id,
            "queue_offset": result.queue_offset,
            "offset_message_id": result.offset_message_id,
            **({"recall_handle": result.recall_handle} if result.recall_handle else {}),
            **({"barrier": result.barrier} if result.barrier else {}),
        }
        for result in results.listed
    ]
    if as_json or rows:
        print_listing(rows, as_json=as_json)
    elif results.sent or not results.failures:
        print(f"sent {results.sent:,} message{'s' if results.sent != 1 else ''} to {topic}")
    if not results.failures:
        return 0
    first = results.failures[0]
    if results.sent or len(results.failures) > 1:
        note(f"cometmq: {len(results.failures):,} messages were not sent; the first because:")
    print(f"cometmq: {first}", file=sys.stderr)
    return exit_code(first)
