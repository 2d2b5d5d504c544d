"""Settings of the store, with RocketMQ's defaults (``MessageStoreConfig``;
docs/internals/store.md#settings).

The broker maps its configuration keys to these fields.  Sizes are in bytes, times in ms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

__all__ = ["DELAYS_MS_DEFAULT", "StoreConfig"]

_SECOND: Final = 1000
_MINUTE: Final = 60 * _SECOND
_HOUR: Final = 60 * _MINUTE

DELAYS_MS_DEFAULT: Final = (
    *(seconds * _SECOND for seconds in (1, 5, 10, 30)),
    *(minutes * _MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
    1 * _HOUR,
    2 * _HOUR,
)
"""Delay of level 1, 2, ... as ``messageDelayLevel`` has them by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreConfig:
    """The settings of one message store; every default is RocketMQ's."""

    root: str
    """storePathRootDir."""
    commit_log_path: str | None = None
    """storePathCommitLog; None is ``root/commitlog``."""
    commit_log_file_bytes: int = 1 << 30
    consume_queue_file_bytes: int = 6_000_000
    """Rounded up to a multiple of the unit's 20 bytes."""
    index_slot_count: int = 5_000_000
    index_entry_count: int = 20_000_000
    is_index_enabled: bool = True
    consume_queue_ext_file_bytes: int = 48 << 20
    store_host: bytes = b"\x7f\x00\x00\x01\x00\x00*\x9f"
    """Advertised address as 4 or 16 bytes of IP and 4 of port; part of every message id."""
    message_bytes_max: int = 4 << 20
    delays_ms: tuple[int, ...] = DELAYS_MS_DEFAULT
    """Delay of level 1, 2, ...; recovery computes delivery times from it."""
    is_sync_flush: bool = False
    sync_flush_timeout_ms: int = 5000
    is_copied_first: bool = False
    """Whether readers see a message only when other replicas have it (`MessageStore.copied`)."""
    flush_interval_ms: int = 500
    flush_least_pages: int = 4
    flush_thorough_interval_ms: int = 10_000
    consume_queue_write_interval_ms: int = 500
    """How long a unit may stay in memory only (it can be derived from the log)."""
    consume_queue_flush_interval_ms: int = 60_000
    unit_journal_queues_min: int = 2_500
    """More queues than this that wait at a time are saved in the unit journal first."""
    unit_journal_bytes_max: int = 16 << 20
    """Units in the journal go to their files when there are so many bytes of them,"""
    unit_journal_age_ms: int = 30_000
    """or when the oldest of them are this old."""
    transfer_count_max: int = 32
    """maxTransferCountOnMessageInMemory: messages in one answer."""
    transfer_bytes_max: int = 256 << 10
    """maxTransferBytesOnMessageInMemory: bytes in one answer, the first message excepted."""
    filter_units_max: int = 800
    """maxFilterMessageSize / 20: units examined in one filtered read."""
    is_crc_appended: bool = False
    """enabledAppendPropCRC."""
    is_crc_checked_on_recover: bool = True
    is_record_crc_forced: bool = False
    """forceVerifyPropCRC: recovery refuses a record without or with a wrong CRC tail."""
    file_reserved_hours: int = 72
    delete_when: tuple[int, ...] = (4,)
    """Hours of the local day at which expired files go."""
    delete_batch_max: int = 10
    clean_interval_ms: int = 10_000
    disk_used_percent_max: int = 75
    disk_clean_forcibly_percent: int = 85
    disk_warning_percent: int = 90
    is_clean_forced: bool = True
    """cleanFileForciblyEnable: above the forcible mark files go whatever their age."""
    scrub_bytes_per_s: int = 0
    """How fast old log files are read again and compared with their digests; 0 for never."""
    scrub_interval_ms: int = 7 * 24 * 3_600_000
    """How long after its last look a file is read again."""
    window_bytes: int = 16 << 20
    """Size of one mapped window; unmapping one stalls nobody (0.1 ms measured)."""
    windows_kept: int = 3
    """Windows behind the current one that stay mapped for readers."""

    @property
    def is_confirmed_later(self) -> bool:
        """Whether readers see a message some time after it was put, if ever."""
        return self.is_sync_flush or self.is_copied_first

    @property
    def queue_file_bytes(self) -> int:
        """Size of a consume-queue file: whole units."""
        return -(-self.consume_queue_file_bytes // 20) * 20

    @property
    def log_path(self) -> str:
        """Directory of the commit log."""
        return self.commit_log_path or f"{self.root}/commitlog"
