"""Making a changed configuration hold in a running broker.

Job: for each key of `LIVE_KEYS` (`cometmq.broker.admin.config`), tell the part that has its own
copy.  It must not decide which keys may change, nor write the file.

Most keys need nothing: their readers ask `BrokerState.config` every time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState
from cometmq.broker.files.persistence import BrokerFiles
from cometmq.broker.registration import Registration
from cometmq.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from cometmq.model.names import DEFAULT_TOPIC
from cometmq.model.topic import TopicConfig
from cometmq.store.base.config import StoreConfig

__all__ = ["LiveConfig"]

_RETENTION_KEYS: Final = frozenset(
    {
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "deleteFileBatchMax",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "fileReservedTime",
    }
)
_SEND_CHECK_KEYS: Final = frozenset({"brokerPermission", "startAcceptSendRequestTimeStamp"})
"""Keys a send to a known topic is not checked against again."""


class LiveConfig:
    """Applies changes.

    Args:
        forget_topics: sends every topic through the checks again.
        store_config: translates a configuration for the store.
        registration: gives what announces topics, once there is one.
    """

    __slots__ = ("_files", "_forget_topics", "_registration", "_state", "_store_config")

    def __init__(
        self,
        state: BrokerState,
        files: BrokerFiles,
        forget_topics: Callable[[], None],
        store_config: Callable[[BrokerConfig], StoreConfig],
        registration: Callable[[], Registration | None],
    ) -> None:
        self._state = state
        self._files = files
        self._forget_topics = forget_topics
        self._store_config = store_config
        self._registration = registration

    def apply(self, config: BrokerConfig, keys: frozenset[str]) -> None:
        """Let a configuration hold from now on; `keys` are those that were given."""
        state = self._state
        state.config = config
        self._files.config = config
        state.groups.auto_create = config.auto_create_subscription_group
        state.offsets.version_step = config.consumer_offset_update_version_step
        if "autoCreateTopicEnable" in keys:
            self._open_template(config)
        if keys & _RETENTION_KEYS:
            state.store.change_retention(self._store_config(config))
        if keys & _SEND_CHECK_KEYS:
            self._forget_topics()
        registration = self._registration()
        if registration is not None:
            registration.period_ms = config.register_name_server_period
            registration.timeout_ms = config.register_broker_timeout_mills
            if "namesrvAddr" in keys:
                registration.change_addresses(config.name_servers())
            if "brokerPermission" in keys:
                state.topics.touch(state.env.clock.now_ms())
                registration.table_changed()

    def _open_template(self, config: BrokerConfig) -> None:
        """Let topics be made after TBW102, or no longer."""
        state = self._state
        perm = PERM_READ | PERM_WRITE
        if config.auto_create_topic_enable:
            perm |= PERM_INHERIT
        count = config.default_topic_queue_nums
        known = state.topics.get(DEFAULT_TOPIC)
        if known is None:
            if not config.auto_create_topic_enable:
                return
            known = TopicConfig(DEFAULT_TOPIC, count, count, perm)
        changed = replace(known, perm=perm)
        if changed != state.topics.get(DEFAULT_TOPIC):
            state.topics.put(changed, state.env.clock.now_ms())
            state.on_topic_changed(changed)
