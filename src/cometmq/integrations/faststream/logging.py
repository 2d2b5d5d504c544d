"""The broker's log in FastStream's format: topic, group and message id in columns."""

import logging
from typing import Any

from faststream._internal.basic_types import LoggerProto
from faststream._internal.context import ContextRepo
from faststream._internal.logger import DefaultLoggerStorage, LoggerState, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

__all__ = ["comet_logger_state"]

_MESSAGE_ID_WIDTH = 10


class CometParamsStorage(DefaultLoggerStorage):
    """The widths of the columns: those of the longest names of the subscribers."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_width = 4
        self._group_width = 4
        self._log_level = logging.INFO

    def set_level(self, level: int) -> None:
        """The level of the logger that `get_logger` makes."""
        self._log_level = level

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Widen the columns for a subscriber."""
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        """The logger, made on first use."""
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="cometmq",
                default_context={"topic": "", "group": ""},
                message_id_ln=_MESSAGE_ID_WIDTH,
                fmt="%(asctime)s %(levelname)-8s - "
                f"%(topic)-{self._topic_width}s | %(group)-{self._group_width}s | "
                f"%(message_id)-{_MESSAGE_ID_WIDTH}s - %(message)s",
                context=context,
                log_level=self._log_level,
            )
            self._logger_ref.add(logger)
        return logger


def comet_logger_state(logger: LoggerProto | None, log_level: int) -> LoggerState:
    """The logger of a broker: the program's own, or the default one."""
    return make_logger_state(
        logger=logger, log_level=log_level, default_storage_cls=CometParamsStorage
    )
