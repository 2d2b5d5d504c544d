"""The broker's configuration as the settings of its store and of its timers."""

from __future__ import annotations

import msgspec

from cometmq.broker.base.config import BrokerConfig
from cometmq.core.delay.levels import DelayLevels
from cometmq.store.base.config import StoreConfig
from cometmq.store.timer.timer_slots import TimerRules, precision_of

__all__ = ["store_config", "timer_rules", "with_sizes_of"]


def store_config(config: BrokerConfig, host: bytes) -> StoreConfig:
    """Translate RocketMQ's keys into the store's settings; `host` goes into each record."""
    return StoreConfig(
        root=config.store_path(),
        commit_log_path=config.commit_log_path(),
        commit_log_file_bytes=config.mapped_file_size_commit_log,
        consume_queue_file_bytes=config.mapped_file_size_consume_queue,
        consume_queue_ext_file_bytes=config.mapped_file_size_consume_queue_ext,
        index_slot_count=config.max_hash_slot_num,
        index_entry_count=config.max_index_num,
        is_index_enabled=config.message_index_enable,
        store_host=host,
        message_bytes_max=config.max_message_size,
        delays_ms=DelayLevels(config.message_delay_level).delays_ms,
        is_sync_flush=config.flush_disk_type == "SYNC_FLUSH",
        is_copied_first=config.enable_controller_mode,
        sync_flush_timeout_ms=config.sync_flush_timeout,
        flush_interval_ms=config.flush_interval_commit_log,
        consume_queue_write_interval_ms=config.flush_interval_consume_queue,
        transfer_count_max=config.max_transfer_count_on_message_in_memory,
        transfer_bytes_max=config.max_transfer_bytes_on_message_in_memory,
        is_crc_appended=config.enabled_append_prop_crc,
        is_crc_checked_on_recover=config.check_crc_on_recover,
        is_record_crc_forced=config.force_verify_prop_crc,
        file_reserved_hours=config.file_reserved_time,
        delete_when=tuple(int(hour) for hour in config.delete_when.split(";")),
        delete_batch_max=config.delete_file_batch_max,
        clean_interval_ms=config.clean_resource_interval,
        disk_used_percent_max=config.disk_max_used_space_ratio,
        disk_clean_forcibly_percent=config.disk_space_clean_forcibly_ratio,
        disk_warning_percent=config.disk_space_warning_level_ratio,
        is_clean_forced=config.clean_file_forcibly_enable,
        scrub_bytes_per_s=config.scrub_bytes_per_second,
        scrub_interval_ms=config.scrub_interval_hours * 3_600_000,
    )


def timer_rules(config: BrokerConfig) -> TimerRules:
    """Return the rules by which timed messages get their slots of the wheel."""
    return TimerRules(precision_of(config.timer_precision_ms), config.timer_roll_window_slot)


def with_sizes_of(store: StoreConfig, config: BrokerConfig) -> BrokerConfig:
    """Put the file sizes that a loaded store has in place of the configured ones."""
    return msgspec.structs.replace(
        config,
        mapped_file_size_commit_log=store.commit_log_file_bytes,
        mapped_file_size_consume_queue=store.consume_queue_file_bytes,
        max_hash_slot_num=store.index_slot_count,
        max_index_num=store.index_entry_count,
    )
