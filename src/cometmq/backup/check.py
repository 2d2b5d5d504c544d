"""Checks that a repository still has each byte of a backup."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from cometmq.backup.manifest import BackupManifest
    from cometmq.backup.repository import Repository

__all__ = ["check_backup", "wanted_files"]


def wanted_files(manifest: BackupManifest) -> Iterator[tuple[str, int, str]]:
    """Yield path in the repository, size and SHA-256 of each file of a backup."""
    for file in manifest.sealed:
        yield file.path, file.size, file.sha256
    parts = manifest.tables if manifest.tail is None else (*manifest.tables, manifest.tail)
    for part in parts:
        yield f"{manifest.folder}/{part.path}", part.size, part.sha256


def check_backup(
    repository: Repository,
    manifest: BackupManifest,
    progress: Callable[[str, int, int], None] = lambda what, done, total: None,
) -> list[str]:
    """Read a backup and compare its digests; return a text about each wrong file.  Blocks."""
    wanted = list(wanted_files(manifest))
    total, done = sum(size for _, size, _ in wanted), 0
    findings = list(manifest.damages)
    for path, size, sha256 in wanted:
        progress(path.rpartition("/")[2], done, total)
        digest, found = hashlib.sha256(), 0
        try:
            for block in repository.blocks(path):
                digest.update(block)
                found += len(block)
        except FileNotFoundError:
            findings.append(f"{repository.location}/{path}: the file is missing")
            continue
        done += size
        if found != size:
            findings.append(f"{repository.location}/{path}: {found} bytes, {size} were written")
        elif digest.hexdigest() != sha256:
            findings.append(f"{repository.location}/{path}: other bytes than were written")
    return findings
