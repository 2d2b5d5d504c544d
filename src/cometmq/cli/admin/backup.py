"""`cometmq backup create|list|verify|restore|delete`: copies of a store and points in time."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.terminal.confirming import confirm
from cometmq.cli.terminal.options import done_option, is_quiet, json_option, set_up_logging
from cometmq.cli.terminal.values import GIVEN, parse_time_ms

if TYPE_CHECKING:
    from cometmq.backup.manifest import BackupManifest

__all__ = ["backup"]

FINDINGS_SHOWN_MAX: Final = 100


@click.group(short_help="Back up a store, check and restore backups.")
def backup() -> None:
    """Back up a store, RocketMQ's or ours, while its broker runs; check and restore backups.

    REPOSITORY is a folder, or the URL of an object store such as s3://bucket/cometmq.
    """


def _time(milliseconds: int) -> str:
    if milliseconds < 0:
        return "-"
    return datetime.fromtimestamp(milliseconds / 1000, UTC).isoformat(timespec="milliseconds")


def _store_root(store: str) -> str:
    from cometmq.errors import StoreError

    root = Path(store).absolute()
    if not (root / "commitlog").is_dir():
        raise StoreError(f"{root} has no folder commitlog; give a store (storePathRootDir)")
    return str(root)


def _store_bytes(manifest: "BackupManifest") -> int:
    tail = 0 if manifest.tail is None else manifest.tail.size
    return sum(file.size for file in manifest.sealed) + tail


@backup.command("create", short_help="Back up the store of a running or stopped broker.")
@click.argument("store", type=GIVEN, metavar="STORE")
@click.argument("repository", type=GIVEN, metavar="REPOSITORY")
@click.option("--name", type=GIVEN, help="Name of the backup; the time by default.")
@json_option
@click.pass_context
def create(
    ctx: click.Context, store: str, repository: str, name: str | None, as_json: bool
) -> None:
    """Back up store directory STORE into REPOSITORY; sends to its broker do not wait.

    Every message that was acknowledged before the start is in the backup, with topics, groups and
    consumer offsets. Log files that an earlier backup brought are shared with it.
    """
    set_up_logging(ctx)
    from cometmq.backup.create import create_backup
    from cometmq.backup.repository import open_repository
    from cometmq.cli.terminal.output import note, print_json, progress
    from cometmq.net.env import SystemClock

    root = _store_root(store)
    now_ms = SystemClock().now_ms()
    name = name or datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y-%m-%dT%H-%M-%SZ")
    place = open_repository(repository)
    with progress("backup", quiet=is_quiet(ctx)) as (bar,):
        created = create_backup(
            root,
            place,
            name,
            now_ms,
            lambda what, done, total: bar.update(done, total or None, what),
        )
    for damage in created.manifest.damages:
        note(f"damaged, and in the backup as it is: {damage}")
    if as_json:
        moved = ("linked_bytes", "copied_bytes", "shared_bytes")
        print_json(_row(created.manifest) | {key: getattr(created, key) for key in moved})
        return
    print(
        f"{place.location}: backup {name} up to physical offset {created.manifest.log_end:,}; "
        f"sealed files: {created.linked_bytes:,} bytes linked, {created.copied_bytes:,} copied, "
        f"{created.shared_bytes:,} shared with earlier backups"
    )


def _row(manifest: "BackupManifest") -> dict[str, Any]:
    return {
        "name": manifest.name,
        "created": _time(manifest.created_ms),
        "log_begin": manifest.log_begin,
        "log_end": manifest.log_end,
        "last_stored": _time(manifest.last_store_ms),
        "bytes": _store_bytes(manifest),
        "damages": len(manifest.damages),
    }


@backup.command("list", short_help="The backups of a repository.")
@click.argument("repository", type=GIVEN, metavar="REPOSITORY")
@json_option
@click.pass_context
def list_backups(ctx: click.Context, repository: str, as_json: bool) -> None:
    """List the backups in REPOSITORY, oldest first."""
    set_up_logging(ctx)
    from cometmq.backup.create import manifests
    from cometmq.backup.repository import open_repository
    from cometmq.cli.terminal.output import print_listing

    rows = [_row(manifest) for manifest in manifests(open_repository(repository))]
    print_listing(rows, as_json=as_json, empty="no backup")


@backup.command("verify", short_help="Read backups and compare every digest.")
@click.argument("repository", type=GIVEN, metavar="REPOSITORY")
@click.argument("name", type=GIVEN, required=False)
@json_option
@click.pass_context
def verify(ctx: click.Context, repository: str, name: str | None, as_json: bool) -> int:
    """Read backup NAME in REPOSITORY, all without it, and compare every file with its digest.

    Exit code 5 when a file is missing or has other bytes than were written.
    """
    set_up_logging(ctx)
    from cometmq.backup.check import check_backup
    from cometmq.backup.create import manifests, read_manifest
    from cometmq.backup.repository import open_repository
    from cometmq.cli.terminal.exit_codes import STORE
    from cometmq.cli.terminal.output import note, print_json, progress

    place = open_repository(repository)
    chosen = manifests(place) if name is None else [read_manifest(place, name)]
    findings: dict[str, list[str]] = {}
    with progress("verify", quiet=is_quiet(ctx)) as (bar,):
        for manifest in chosen:
            findings[manifest.name] = check_backup(
                place, manifest, lambda what, done, total: bar.update(done, total or None, what)
            )
    if as_json:
        print_json([{"name": name, "findings": found} for name, found in findings.items()])
    else:
        for key, found in findings.items():
            for text in found[:FINDINGS_SHOWN_MAX]:
                print(text)
            if len(found) > FINDINGS_SHOWN_MAX:
                note(f"... and {len(found) - FINDINGS_SHOWN_MAX:,} more; --json prints all")
            print(f"{key}: " + (f"{len(found):,} things found" if found else "sound"))
        if not findings:
            note("no backup")
    return STORE if any(findings.values()) else 0


@backup.command("restore", short_help="Make a store of a backup, up to a point in time.")
@click.argument("repository", type=GIVEN, metavar="REPOSITORY")
@click.argument("store", type=GIVEN, metavar="STORE")
@click.option(
    "--name", type=GIVEN, help="The backup; the first one that reaches --to, or the last."
)
@click.option(
    "--to",
    "point",
    type=GIVEN,
    metavar="TIME|OFFSET",
    help="Leave out what was stored later: a time (2026-11-22T10:30+01:00), ms since 1970, or "
    "'offset:N' for a physical offset.",
)
@done_option
@click.pass_context
def restore(
    ctx: click.Context, repository: str, store: str, name: str | None, point: str | None
) -> None:
    """Make the store STORE, which must not exist, of a backup in REPOSITORY.

    A broker that opens it builds queues, index and timers from the log.
    """
    set_up_logging(ctx)
    from cometmq.backup.create import manifests
    from cometmq.backup.repository import open_repository
    from cometmq.backup.restore import restore_backup
    from cometmq.cli.terminal.output import print_done, progress

    to_ms, to_offset = _point(ctx, point)
    place = open_repository(repository)
    every = manifests(place)
    chosen = _choose(every, place.location, name, to_ms, to_offset)
    with progress("restore", quiet=is_quiet(ctx)) as (bar,):
        restored = restore_backup(
            place,
            chosen,
            str(Path(store).absolute()),
            to_ms=to_ms,
            to_offset=to_offset,
            earlier=tuple(every),
            progress=lambda what, done, total: bar.update(done, total or None, what),
        )
    print_done(
        f"{Path(store).absolute()}: restored from {chosen.name}, log {restored.log_begin:,} to "
        f"{restored.log_end:,}, last message stored {_time(restored.last_store_ms)}, positions of "
        f"consumers from {restored.positions_of}",
        store=str(Path(store).absolute()),
        backup=chosen.name,
        log_begin=restored.log_begin,
        log_end=restored.log_end,
        last_store_timestamp_ms=restored.last_store_ms,
        positions_of=restored.positions_of,
    )


def _choose(
    every: "list[BackupManifest]",
    location: str,
    name: str | None,
    to_ms: int | None,
    to_offset: int | None,
) -> "BackupManifest":
    """Return the first backup that reaches the given point, the last one without such a backup."""
    from cometmq.errors import StoreError

    wanted = [manifest for manifest in every if name in {None, manifest.name}]
    if not wanted:
        raise StoreError(f"{location} has no backup" + ("" if name is None else f" {name!r}"))
    for manifest in wanted:
        if to_ms is not None and manifest.last_store_ms >= to_ms:
            return manifest
        if to_offset is not None and manifest.log_end >= to_offset:
            return manifest
    return wanted[-1]


def _point(ctx: click.Context, point: str | None) -> tuple[int | None, int | None]:
    """Return a time in ms or a physical offset."""
    if point is None:
        return None, None
    found = re.fullmatch(r"offset:([0-9]{1,18})", point)
    if found is not None:
        return None, int(found[1])
    parameter = next(known for known in ctx.command.params if known.name == "point")
    return parse_time_ms(ctx, parameter, point), None


@backup.command("delete", short_help="Delete a backup, and the log files only it has.")
@click.argument("repository", type=GIVEN, metavar="REPOSITORY")
@click.argument("name", type=GIVEN)
@click.option("--yes", is_flag=True, help="Delete without asking.")
@done_option
@click.pass_context
def delete(ctx: click.Context, repository: str, name: str, yes: bool) -> None:
    """Delete backup NAME from REPOSITORY, and the log files that no other backup has."""
    set_up_logging(ctx)
    from cometmq.backup.create import delete_backup, read_manifest
    from cometmq.backup.repository import open_repository
    from cometmq.cli.terminal.output import print_done

    place = open_repository(repository)
    manifest = read_manifest(place, name)
    if not yes:
        confirm(f"Delete backup {name} up to physical offset {manifest.log_end:,}?")
    freed = delete_backup(place, manifest)
    print_done(
        f"{place.location}: backup {name} deleted, {freed:,} bytes of log files with it",
        repository=place.location,
        backup=name,
        freed_bytes=freed,
    )
