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
from cometmq.broker.base.store_config import store_config
from cometmq.broker.files.persistence import BrokerFiles
from cometmq.broker.registration import Registration
from cometmq.model.flags import PERM_INHERIT, PERM_READ, PERM_WRITE
from cometmq.model.names import DEFAULT_TOPIC
from cometmq.model.topic import TopicConfig

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
    """

    __slots__ = ("_files", "_forget_topics", "_registration", "_state")

    def __init__(
        self,
        state: BrokerState,
        files: BrokerFiles,
        registration: Registration,
        forget_topics: Callable[[], None],
    ) -> None:
        self._state = state
        self._files = files
        self._registration = registration
        self._forget_topics = forget_topics

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
            state.store.change_retention(store_config(config, state.host))
        if keys & _SEND_CHECK_KEYS:
            self._forget_topics()
        if "brokerPermission" in keys:
            state.topics.touch(state.env.clock.now_ms())
        self._registration.change_config(config, keys)

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
            state.topic_changed(changed)
