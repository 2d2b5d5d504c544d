"""What a slave refuses, with RocketMQ's codes and remarks: everything that only a master may do.

Source: SendMessageProcessor, PullMessageProcessor, EndTransactionProcessor, RecallMessageProcessor
and AdminBrokerProcessor of RocketMQ 5.4.0.
"""

from __future__ import annotations

from typing import Final

from cometmq.broker.base.config import BrokerConfig
from cometmq.broker.base.state import answer
from cometmq.errors import ResponseCode
from cometmq.net.server import Handler, ServerConnection
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand

__all__ = ["slave_refusals"]

_BUSY: Final = (
    ResponseCode.SYSTEM_BUSY,
    "[REJECTREQUEST]system busy, start flow control for a while",
)
_NOT_A_MASTER: Final = (ResponseCode.SLAVE_NOT_AVAILABLE, "this broker is a slave")
_NO_CHANGES: Final = (
    ResponseCode.SYSTEM_ERROR,
    "Can't modify topic or subscription group from slave broker, please execute it from master"
    " broker.",
)
_NO_RESETS: Final = (ResponseCode.SYSTEM_ERROR, "Can not reset offset in slave broker")

_REFUSED: Final[dict[tuple[int, str], tuple[int, ...]]] = {
    _BUSY: (
        Code.SEND_MESSAGE,
        Code.SEND_MESSAGE_V2,
        Code.SEND_BATCH_MESSAGE,
        Code.CONSUMER_SEND_MSG_BACK,
        Code.SEND_REPLY_MESSAGE,
        Code.SEND_REPLY_MESSAGE_V2,
    ),
    _NOT_A_MASTER: (
        Code.END_TRANSACTION,
        Code.RECALL_MESSAGE,
        Code.RESUME_CHECK_HALF_MESSAGE,
    ),
    _NO_CHANGES: (
        Code.UPDATE_AND_CREATE_TOPIC,
        Code.UPDATE_AND_CREATE_TOPIC_LIST,
        Code.DELETE_TOPIC_IN_BROKER,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST,
        Code.DELETE_SUBSCRIPTIONGROUP,
        Code.UPDATE_AND_GET_GROUP_FORBIDDEN,
    ),
    _NO_RESETS: (Code.INVOKE_BROKER_TO_RESET_OFFSET,),
}
_PULLS: Final = (Code.PULL_MESSAGE, Code.LITE_PULL_MESSAGE)


def slave_refusals(config: BrokerConfig) -> dict[int, Handler]:
    """Map each code that a slave refuses to its refusal; pulls too without slaveReadEnable."""
    table = {int(code): _refusal(*how) for how, codes in _REFUSED.items() for code in codes}
    if not config.slave_read_enable:
        table |= {int(code): _refusal(*_BUSY) for code in _PULLS}
    return table


def _refusal(code: int, remark: str) -> Handler:
    def serve(request: RemotingCommand, connection: ServerConnection, now_ms: int) -> bytes:
        return answer(request, code, remark)

    return serve
