"""`cometmq store inspect|verify DIR`: read a store, RocketMQ's or ours, without a broker."""

from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.terminal.bodies import body_text
from cometmq.cli.terminal.options import (
    admin_client,
    is_quiet,
    json_option,
    set_up_logging,
    timeout_option,
)
from cometmq.cli.terminal.values import GIVEN

if TYPE_CHECKING:
    from cometmq.codec.stored_message import StoredMessage
    from cometmq.store.offline.inspect import StoreView
    from cometmq.store.offline.verify import VerifyReport

__all__ = ["store"]

FINDINGS_SHOWN_MAX: Final = 100
"""A rotten disk gives thousands of lines; a person reads the first, --json prints all kept."""


@click.group(short_help="Read a store directory without a broker.")
def store() -> None:
    """Read a store directory, RocketMQ's or ours, without a broker; nothing is changed."""


def _root(directory: str) -> str:
    from cometmq.errors import StoreError

    path = Path(directory).absolute()
    if not (path / "commitlog").is_dir():
        what = "holds no commitlog folder" if path.is_dir() else "is no directory"
        raise StoreError(f"{path} {what}; give a store directory (storePathRootDir)")
    return str(path)


@store.command("inspect", short_help="Files, queues, ranges, checkpoint.")
@click.argument("directory", type=GIVEN, metavar="DIR")
@click.option("--records", "count", type=click.IntRange(1), help="Print so many records instead.")
@click.option(
    "--from",
    "start",
    type=click.IntRange(0),
    metavar="POSITION",
    help="First physical offset for --records.",
)
@json_option
@click.pass_context
def inspect(
    ctx: click.Context, directory: str, count: int | None, start: int | None, as_json: bool
) -> None:
    """Describe store directory DIR: log files, queues with their ranges, index, checkpoint.

    With --records N, the first N messages of the log (from --from POSITION on).
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_json, print_listing, progress
    from cometmq.store.base.disk import RealDisk
    from cometmq.store.offline.inspect import inspect_store, read_records

    root = _root(directory)
    if start is not None and count is None:
        count = 10
    if count is not None:
        records = read_records(RealDisk(), root, start=start, count=count)
        print_listing([_record(record) for record in records], as_json=as_json, empty="no record")
        return
    with progress("queues", quiet=is_quiet(ctx)) as (bar,):
        view = inspect_store(
            RealDisk(), root, lambda what, done, total: bar.update(done, total or None, what)
        )
    if as_json:
        print_json(_view_json(view))
    else:
        _print_view(view)


def _record(record: "StoredMessage") -> dict[str, Any]:
    return {
        "physical_offset": record.physical_offset,
        "topic": record.topic,
        "queue_id": record.queue_id,
        "queue_offset": record.queue_offset,
        "stored": _time(record.store_timestamp_ms),
        "tags": record.properties.get("TAGS"),
        "keys": record.properties.get("KEYS"),
        "body": body_text(record.body, 200),
    }


def _time(milliseconds: int) -> str | None:
    if milliseconds < 0:
        return None
    try:
        return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")
    except (OverflowError, OSError, ValueError):
        return f"{milliseconds} ms"  # damaged: no calendar has this time


def _view_json(view: "StoreView") -> dict[str, Any]:
    side = view.side_file
    return {
        "root": view.root,
        "closed_in_peace": view.abort is None,
        "abort": view.abort,
        "checkpoint": None if view.checkpoint is None else view.checkpoint._asdict(),
        "side_file": side if isinstance(side, str) else side.heading | side.progress._asdict(),
        "log_file_bytes": view.log_file_bytes,
        "queue_file_bytes": view.queue_file_bytes,
        "log_files": [asdict(file) for file in view.log_files],
        "queues": [asdict(queue) for queue in view.queues],
        "index_files": [
            asdict(file) | {"header": None if file.header is None else file.header._asdict()}
            for file in view.index_files
        ],
        "other_files": [{"path": path, "size": size} for path, size in view.other_files],
    }


def _print_view(view: "StoreView") -> None:
    from cometmq.cli.terminal.output import print_listing

    ending = (
        "closed in peace" if view.abort is None else f"not closed (abort: {view.abort.strip()})"
    )
    print(f"{view.root}: {ending}")
    if view.checkpoint is not None:
        print("checkpoint: " + _fields(view.checkpoint._asdict()))
    print(f"our side file: {view.side_file if isinstance(view.side_file, str) else 'present'}")
    print()
    print_listing(
        [
            {
                "log_file": Path(file.path).name,
                "size": file.size,
                "first_stored": _time(file.first_store_ms),
                "written": file.is_written,
            }
            for file in view.log_files
        ],
        as_json=False,
        title="Commit log",
        empty="no log file",
    )
    print()
    print_listing(
        [
            {
                "topic": queue.topic,
                "queue_id": queue.queue_id,
                "min_offset": queue.min_queue_offset,
                "max_offset": queue.max_queue_offset,
                "files": queue.file_count,
            }
            for queue in view.queues
        ],
        as_json=False,
        title="Consume queues",
        empty="no consume queue",
    )
    print()
    print_listing(
        [
            {
                "index_file": Path(file.path).name,
                "size": file.size,
                "slots": file.slot_count,
                "entries_max": file.entry_count_max,
            }
            for file in view.index_files
        ],
        as_json=False,
        title="Index files",
        empty="no index file",
    )
    print()
    print_listing(
        [{"other_file": path, "size": size} for path, size in view.other_files],
        as_json=False,
        title="Other files",
        empty="no other file",
    )


def _fields(values: dict[str, Any]) -> str:
    return ", ".join(
        f"{name} {_time(value) if name.endswith('_ms') and value else value}"
        for name, value in values.items()
    )


@store.command("verify", short_help="Check every record, unit and index entry.")
@click.argument("directory", type=GIVEN, metavar="DIR")
@click.option(
    "--repair-from",
    "donor",
    type=GIVEN,
    metavar="HOST:PORT",
    help="Write rotten blocks anew with the bytes of this broker, which has the same log.",
)
@timeout_option
@json_option
@click.pass_context
def verify(
    ctx: click.Context, directory: str, donor: str | None, timeout_s: float, as_json: bool
) -> int:
    """Check every record, unit and index entry of store directory DIR.

    Each fault is printed with its file and position; without --repair-from nothing is changed. The
    end of a store that a broker is writing may look incomplete. Exit code 5 when there is anything
    but a note.
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.exit_codes import STORE
    from cometmq.cli.terminal.output import print_json, progress
    from cometmq.store.base.disk import RealDisk
    from cometmq.store.offline.verify import verify_store

    root = _root(directory)
    if donor is not None:
        _repair(root, donor, timeout_s)
    with progress("verify", quiet=is_quiet(ctx)) as (bar,):
        report = verify_store(
            RealDisk(), root, lambda what, done, total: bar.update(done, total or None, what)
        )
    if as_json:
        print_json(_report_json(report))
    else:
        _print_report(report)
    return 0 if report.is_sound else STORE


def _repair(root: str, donor: str, timeout_s: float) -> None:
    """Put the rotten blocks of a closed store right with the bytes of a running broker."""
    from cometmq.cli.terminal.output import note
    from cometmq.net.loop import run
    from cometmq.store.base.disk import RealDisk
    from cometmq.store.scrub.check import find_rotten, put_right
    from cometmq.wire.command.command import RemotingCommand
    from cometmq.wire.extensions.log_range import LogRangeCode, ReadLogRangeHeader

    async def ask(physical_offset: int, length: int) -> bytes:
        header = ReadLogRangeHeader(physical_offset, length)
        command = RemotingCommand.request(LogRangeCode.READ_LOG_RANGE, header.to_ext())
        async with admin_client(donor, timeout_s) as admin:
            answer = await admin.queue_reader().calls.ask(donor, command)
        return bytes(answer.body)

    disk = RealDisk()
    lock = disk.lock(f"{root}/lock")
    try:
        blocks = list(find_rotten(disk, f"{root}/commitlog", root))
        for block in blocks:
            put_right(disk, root, block, lambda offset, length: run(ask(offset, length)))
            note(f"repaired: {block.path}, position {block.position}, {block.size} bytes")
        if not blocks:
            note("no rotten block: every sealed log file has its digests, or has none yet")
    finally:
        lock.release()


def _report_json(report: "VerifyReport") -> dict[str, Any]:
    return {
        "root": report.root,
        "is_sound": report.is_sound,
        "log_start": report.log_start,
        "log_end": report.log_end,
        "records": report.records,
        "units": report.units,
        "index_entries": report.index_entries,
        "finding_count": report.finding_count,
        "findings": [
            {
                "kind": finding.kind.value,
                "path": finding.path,
                "position": finding.position,
                "text": finding.text,
            }
            for finding in report.findings
        ],
    }


def _print_report(report: "VerifyReport") -> None:
    from cometmq.cli.terminal.output import note

    for finding in report.findings[:FINDINGS_SHOWN_MAX]:
        print(finding)
    hidden = report.finding_count - min(len(report.findings), FINDINGS_SHOWN_MAX)
    if hidden > 0:
        note(f"... and {hidden:,} more; --json prints the first {len(report.findings):,}")
    print(
        f"{report.root}: log {report.log_start:,} to {report.log_end:,}, "
        f"{report.records:,} records, {report.units:,} units, "
        f"{report.index_entries:,} index entries: "
        + ("sound" if report.is_sound else f"{report.finding_count:,} things found")
    )
