"""The broker's configuration over the wire: GET_BROKER_CONFIG (26), UPDATE_BROKER_CONFIG (25).

A request changes all of its keys or none.  The change is checked, written to the file that the
broker was started with, applied, and then answered.

`LIVE_KEYS` can change in a running broker; other keys are refused by name, with what to do instead.
Java answers success to any key, also if nothing comes of it.

The file is the properties file of ``-c``: only the lines of changed keys are replaced, and the
version before stays as ``.bak``.  A broker that was started without a file writes, like RocketMQ's,
to ``config/broker.properties`` in its store, which is read only by a start with ``-c``.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import PurePosixPath
from typing import Final

from cometmq.broker.base.config import BrokerConfig, changed_config, effective_keys
from cometmq.broker.base.state import BrokerState, Refusal, answer, in_worker, refusing
from cometmq.codec.java_properties import merge_properties, parse_properties
from cometmq.errors import ConfigError, ResponseCode, StoreError
from cometmq.model.topic import DataVersion
from cometmq.net.server import Handler, ServerConnection
from cometmq.store.base.disk import Disk, make_durable_directory
from cometmq.wire.body.route import encode_data_version
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand

__all__ = ["LIVE_KEYS", "ConfigProcessor", "ConfigWriter"]

log = logging.getLogger("cometmq.broker")

LIVE_KEYS: Final = frozenset(
    {
        "autoCreateSubscriptionGroup",
        "autoCreateTopicEnable",
        "brokerPermission",
        "channelExpiredTimeout",
        "cleanFileForciblyEnable",
        "cleanResourceInterval",
        "consumerOffsetUpdateVersionStep",
        "defaultQueryMaxNum",
        "delayOffsetUpdateVersionStep",
        "deleteFileBatchMax",
        "deleteWhen",
        "diskMaxUsedSpaceRatio",
        "diskSpaceCleanForciblyRatio",
        "diskSpaceWarningLevelRatio",
        "fileReservedTime",
        "flushConsumerOffsetInterval",
        "flushDelayOffsetInterval",
        "litePullMessageEnable",
        "longPollingEnable",
        "namesrvAddr",
        "notifyConsumerIdsChangedEnable",
        "registerBrokerTimeoutMills",
        "registerNameServerPeriod",
        "rejectTransactionMessage",
        "shortPollingTimeMills",
        "stagedTimeoutMinutes",
        "strictSubscriptions",
        "absentFilterRetainTime",
        "startAcceptSendRequestTimeStamp",
        "storeReplyMessageEnable",
        "timerDeliverRate",
        "transactionCheckInterval",
        "transactionCheckMax",
        "transactionOpBatchInterval",
        "transactionOpMsgMaxSize",
        "transactionTimeOut",
        "useServerSideResetOffset",
    }
)
"""Keys that take effect at once; all others are read at the start only."""


class ConfigWriter:
    """Writes changed keys to the broker's properties file, in a worker.

    Args:
        disk: where the file lies.
        path: the file of ``-c``, or None for the one in the store.
        store_path: of the store.
    """

    def __init__(self, disk: Disk, path: str | None, store_path: str) -> None:
        self._disk = disk
        # Two workers may serve two requests; the second has to see the file of the first.
        self._lock = threading.Lock()
        self.path = path or f"{store_path}/config/broker.properties"

    def write(self, changes: Mapping[str, str]) -> None:
        """Replace the values of some keys.  Blocks.

        Raises:
            StoreError: the disk does not take it; the file is as it was.
        """
        try:
            with self._lock:
                self._write(changes)
        except (OSError, ValueError) as error:
            raise StoreError(f"{self.path} could not be written: {error}") from error

    def _write(self, changes: Mapping[str, str]) -> None:
        disk, path = self._disk, self.path
        make_durable_directory(disk, str(PurePosixPath(path).parent))
        before = disk.read_bytes(path) if disk.exists(path) else b""
        if before:
            disk.write_atomic(path + ".bak", before)
        disk.write_atomic(path, merge_properties(before.decode(), changes).encode())


class ConfigProcessor:
    """The processors of codes 25 and 26.

    Args:
        apply: applies a changed configuration; called on the loop with the changed keys.
    """

    def __init__(
        self,
        state: BrokerState,
        writer: ConfigWriter,
        apply: Callable[[BrokerConfig, frozenset[str]], None],
    ) -> None:
        self._state = state
        self._writer = writer
        self._apply = apply
        self._version = DataVersion(state.started_ms)

    def handlers(self) -> dict[int, Handler]:
        """Map each code to its processor, with refusals turned into answers."""
        return {
            Code.UPDATE_BROKER_CONFIG: refusing(self.update),
            Code.GET_BROKER_CONFIG: refusing(self.show),
        }

    def show(self, request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        """Serve GET_BROKER_CONFIG (26)."""
        version = encode_data_version(self._version).decode()
        text = self._state.config.properties_text()
        return answer(request, ext={"version": version}, body=text.encode())

    def update(
        self, request: RemotingCommand, connection: ServerConnection, now_ms: int
    ) -> bytes | None:
        """Serve UPDATE_BROKER_CONFIG (25): all of the given keys or none.

        Raises:
            Refusal: a key is unknown, fixed or has a bad value; nothing is changed.
        """
        try:
            changes = parse_properties(request.body.decode())
        except UnicodeDecodeError as error:
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"the properties are not UTF-8 text at byte {error.start}",
            ) from error
        if self._state.config.black_list() & changes.keys():
            raise Refusal(ResponseCode.NO_PERMISSION, "Can not update config in black list.")
        if not changes:
            return answer(request)
        try:
            changed = changed_config(self._state.config, changes)
        except ConfigError as error:
            raise Refusal(ResponseCode.INVALID_PARAMETER, str(error)) from error
        self._refuse_fixed(changes, changed)

        def finish(_: None) -> bytes:
            # Another request may have changed other keys meanwhile.
            self._apply(changed_config(self._state.config, changes), frozenset(changes))
            self._version = self._version.next(now_ms)
            log.info("configuration changed by %s: %s", connection.peer, changes)
            return answer(request)

        in_worker(self._state, request, connection, lambda: self._writer.write(changes), finish)
        return None

    def _refuse_fixed(self, changes: Mapping[str, str], changed: BrokerConfig) -> None:
        """Refuse another value for a key that is read at the start only."""
        now, then = self._state.config.to_properties(), changed.to_properties()
        fixed = [key for key in changes if key not in LIVE_KEYS and now.get(key) != then.get(key)]
        if fixed:
            accepted = effective_keys()[fixed[0]][1]
            raise Refusal(
                ResponseCode.INVALID_PARAMETER,
                f"{', '.join(sorted(fixed))} cannot change while the broker runs; set it in the "
                f"configuration file ({accepted}) and restart the broker",
            )
