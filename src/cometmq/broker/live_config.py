"""Applies a changed configuration to a running broker.

Most readers of a key ask `BrokerState.config` every time; the others hold a copy, which is replaced
here.  `cometmq.broker.admin.config` decides which keys may change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import BrokerState
from cometmq.broker.base.store_config import store_config
from cometmq.broker.files.persistence import BrokerFiles
from cometmq.broker.registration import RegistrationService
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
"""Keys that only a topic's first send is checked against, so a change checks every topic again."""


class LiveConfig:
    """Applies changes.

    Args:
        forget_topics: makes the next send to each topic go through all checks again.
    """

    def __init__(
        self,
        state: BrokerState,
        files: BrokerFiles,
        registration: RegistrationService,
        forget_topics: Callable[[], None],
    ) -> None:
        self._state = state
        self._files = files
        self._registration = registration
        self._forget_topics = forget_topics

    def apply(self, config: BrokerConfig, keys: frozenset[str]) -> None:
        """Apply a configuration; `keys` are those that were given."""
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
        """Allow or forbid the creation of topics after the template TBW102."""
        state = self._state
        perm = PERM_READ | PERM_WRITE
        if config.auto_create_topic_enable:
            perm |= PERM_INHERIT
        count = config.default_topic_queue_nums
        template = state.topics.get(DEFAULT_TOPIC)
        if template is None:
            if not config.auto_create_topic_enable:
                return
            template = TopicConfig(DEFAULT_TOPIC, count, count, perm)
        changed = replace(template, perm=perm)
        if changed != state.topics.get(DEFAULT_TOPIC):
            state.topics.put(changed, state.env.clock.now_ms())
            state.topic_changed(changed)
