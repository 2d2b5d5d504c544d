"""Settings of brokers and their stores that a seed draws: sizes, intervals and ways of saving.

A setting is written ``name=number`` in a plan.  `BROKER` has fields of `BrokerConfig`, `STORE`
fields of `StoreConfig` for which RocketMQ has no key, and `SIZES` constants of the product.  Their
values are small, so that in a short run files become full, are written anew and are saved in other
ways.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import ModuleType
from typing import Any, Final
from unittest import mock

import cometmq.broker.broker as broker_module
import cometmq.store.base.checkpoint as checkpoint_module
from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.store_config import store_config
from cometmq.errors import ConfigError
from cometmq.store.base.config import StoreConfig

__all__ = ["broker_settings", "check_settings", "draw_settings", "with_settings"]

_FIT: Final = 0.5
"""The share of seeds that draw settings."""
_COUNT_MAX: Final = 6

BROKER: Final[dict[str, tuple[int, ...]]] = {
    "consumer_offset_update_version_step": (1,),
    "enabled_append_prop_crc": (1,),
    "flush_consumer_offset_interval": (50, 5_000),
    "flush_delay_offset_interval": (50, 5_000),
    "flush_interval_commit_log": (20, 100, 2_000),
    "flush_interval_consume_queue": (20, 200, 5_000),
    "mapped_file_size_commit_log": (20 * 1024, 64 * 1024, 256 * 1024),
    "mapped_file_size_consume_queue": (20 * 7, 20 * 300),
    "mapped_file_size_timer_log": (4_096, 52 * 1_000),
    "max_hash_slot_num": (7, 1_000),
    "max_index_num": (30, 2_000),
    "max_transfer_bytes_on_message_in_memory": (2_000,),
    "max_transfer_count_on_message_in_memory": (1, 4),
    "message_index_enable": (0,),
    "scrub_bytes_per_second": (10_000_000,),
    "timer_flush_interval_ms": (50,),
    "timer_precision_ms": (100, 500),
}
STORE: Final[dict[str, tuple[int, ...]]] = {
    "consume_queue_flush_interval_ms": (500, 3_000),
    "flush_least_pages": (1, 64),
    "flush_thorough_interval_ms": (100,),
    # One queue alone, or every queue that waits, goes through the unit journal.
    "unit_journal_queues_min": (0, 2),
}
_JOURNAL: Final = {"unit_journal_age_ms": 1_500, "unit_journal_bytes_max": 2_000}
"""How soon a drawn unit journal brings its units to the queues' files."""
SIZES: Final[dict[str, tuple[ModuleType, str, tuple[int, ...]]]] = {
    "side_file_changes_bytes": (checkpoint_module, "_CHANGE_BYTES_MAX", (300, 3_000)),
    "side_file_changes_bases": (checkpoint_module, "_CHANGE_BASES_MAX", (0, 1)),
}
_ALL: Final = {**BROKER, **STORE, **{name: values for name, (_, _, values) in SIZES.items()}}


def draw_settings(chance: random.Random, names: Collection[str] = ()) -> tuple[str, ...]:
    """Draw these settings and some others, or these alone."""
    if chance.random() < _FIT:
        names = {*names, *chance.sample(sorted(_ALL), k=chance.randint(1, _COUNT_MAX))}
    return tuple(f"{name}={chance.choice(_ALL[name])}" for name in sorted(names))


def check_settings(settings: tuple[str, ...]) -> None:
    """Check that each setting has a known name and a number.

    Raises:
        ConfigError: one has not; the text lists the names.
    """
    for text in settings:
        name, equals, value = text.partition("=")
        if name not in _ALL or not equals or not value.isdigit():
            raise ConfigError(
                f"a setting is name=number, not {text!r}; names are {', '.join(sorted(_ALL))}"
            )


def _chosen(settings: tuple[str, ...], names: dict[str, Any]) -> dict[str, int]:
    pairs = (text.partition("=") for text in settings)
    return {name: int(value) for name, _, value in pairs if name in names}


def broker_settings(settings: tuple[str, ...]) -> dict[str, object]:
    """Return the fields of `BrokerConfig` among the settings."""
    annotations = BrokerConfig.__annotations__
    return {
        name: bool(value) if annotations[name] in ("bool", bool) else value
        for name, value in _chosen(settings, BROKER).items()
    }


@contextmanager
def with_settings(settings: tuple[str, ...]) -> Iterator[None]:
    """Let stores and constants of the product have the other settings while the block runs."""
    store = _chosen(settings, STORE)
    if "unit_journal_queues_min" in store:
        store = _JOURNAL | store

    def changed(config: BrokerConfig, host: bytes) -> StoreConfig:
        return replace(store_config(config, host), **store)  # type: ignore[arg-type]

    with ExitStack() as stack:
        if store:
            stack.enter_context(mock.patch.object(broker_module, "store_config", changed))
        for name, value in _chosen(settings, SIZES).items():
            module, constant, _ = SIZES[name]
            stack.enter_context(mock.patch.object(module, constant, value))
        yield
