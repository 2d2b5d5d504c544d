"""The manifest of a backup: which bytes belong to it, and their digests.

A repository::

    log/00000000000000000000.1f0c…         a sealed log file, and the head of its SHA-256
    snapshots/<name>/tail                  the written bytes of the last log file
    snapshots/<name>/config/topics.json    a table
    snapshots/<name>/manifest              written last: without it there is no backup

A sealed log file never changes, so all backups share it.  The first line of a manifest is the
SHA-256 of the JSON behind it.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

import msgspec

from cometmq.errors import ConfigError, StoreCorrupt

__all__ = [
    "BackupManifest",
    "Part",
    "SealedFile",
    "check_name",
    "decode",
    "encode",
    "manifest_path",
]

FORMAT: Final = 1
_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


class SealedFile(msgspec.Struct, frozen=True):
    """A log file behind which another one begins; `mtime_ns` is that of the store's file."""

    start: int
    size: int
    sha256: str
    mtime_ns: int

    @property
    def path(self) -> str:
        """Where the repository has the file."""
        return f"log/{self.start:020d}.{self.sha256[:16]}"


class Part(msgspec.Struct, frozen=True):
    """A file that belongs to one backup; `path` is below the backup's folder."""

    path: str
    size: int
    sha256: str


class BackupManifest(msgspec.Struct, frozen=True, kw_only=True):
    """What a backup consists of; offsets are physical offsets of the log."""

    name: str
    created_ms: int
    log_begin: int
    log_end: int
    log_file_bytes: int
    last_store_ms: int
    """Store time of the last message, -1 without one."""
    sealed: tuple[SealedFile, ...]
    tail: Part | None
    """The last file's bytes up to `log_end`."""
    tables: tuple[Part, ...]
    damages: tuple[str, ...] = ()
    format: int = FORMAT

    @property
    def folder(self) -> str:
        """Where the repository has the backup's own files."""
        return f"snapshots/{self.name}"

    @property
    def tail_start(self) -> int:
        """Physical offset at which the tail begins."""
        return self.sealed[-1].start + self.log_file_bytes if self.sealed else self.log_begin


def check_name(name: str) -> str:
    """Return a backup's name, which is a folder's name too.

    Raises:
        ConfigError: the name has other characters.
    """
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"the name {name!r} is not one of a backup: up to 100 letters, digits, '.', '_' and"
            " '-', the first a letter or a digit"
        )
    return name


def manifest_path(name: str) -> str:
    """Return where the repository has the manifest of a backup."""
    return f"snapshots/{name}/manifest"


def encode(manifest: BackupManifest) -> bytes:
    """Return the bytes of a manifest."""
    body = msgspec.json.format(msgspec.json.encode(manifest), indent=1)
    return hashlib.sha256(body).hexdigest().encode() + b"\n" + body


def decode(raw: bytes, where: str) -> BackupManifest:
    """Return a manifest from its bytes.

    Raises:
        StoreCorrupt: the bytes are not those that were written, or of a newer format.
    """
    digest, _, body = raw.partition(b"\n")
    if hashlib.sha256(body).hexdigest().encode() != digest:
        raise StoreCorrupt(
            f"{where} does not have the digest of its first line: use another backup"
        )
    try:
        manifest = msgspec.json.decode(body, type=BackupManifest)
    except msgspec.DecodeError as error:
        raise StoreCorrupt(f"{where} is no manifest of this version: {error}") from error
    if manifest.format != FORMAT:
        raise StoreCorrupt(f"{where} has format {manifest.format}, this version reads {FORMAT}")
    return manifest
