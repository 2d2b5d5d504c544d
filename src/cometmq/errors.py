"""The exception tree and RocketMQ's response codes.

    CometError
    |- LocalProtocolError     we were about to send something the protocol forbids (ValueError)
    |  `- MessageTypeError    ... because it is of the wrong type (TypeError)
    |- RemoteProtocolError    the peer sent bytes that are not the protocol
    |  `- CodecError          a stored message, batch or property string does not decode
    |- RemoteError            the peer answered with a response code other than success
    |  `- one class per code that callers tell apart (see ``REMOTE_ERRORS``)
    |- StoreError             the disk or its files
    |  |- StoreCorrupt | DiskFull | StoreLocked | MessageIllegal
    |  |- StoreFollows | ReplicasMissing
    |  `- StoreClosed > StoreFailed
    |- ClientError            our client could not do what was asked
    |  |- RequestTimeout (TimeoutError) | ConnectFailed (ConnectionError) > TlsFailed
    |  `- NoRoute | ClientClosed | SendFailed | OffsetOutOfRange
    |- ConfigError            a setting or an argument is wrong (ValueError)
    |  |- ConfigTypeError     ... because it is of the wrong type (TypeError)
    |  `- ExpressionIllegal   an SQL92 filter does not parse
    `- NotComparable          a property's value is not what an SQL92 filter compares it with

The built-in classes in parentheses are bases too, so that ``except TimeoutError`` catches
`RequestTimeout`. The two network errors are therefore also OSErrors: code that handles both
catches ours first.

Put and send *statuses* (a flush timed out, a replica is missing) are values in the result, not
exceptions: the message may well be stored.

Source of the codes: ``org.apache.rocketmq.remoting.protocol.ResponseCode`` and
``RemotingSysResponseCode`` of RocketMQ 5.4.0.
"""

from enum import IntEnum
from typing import Final

__all__ = [
    "REMOTE_ERRORS",
    "AccessDenied",
    "BrokerBusy",
    "ClientClosed",
    "ClientError",
    "CodecError",
    "CometError",
    "ConfigError",
    "ConfigTypeError",
    "ConnectFailed",
    "DiskFull",
    "ExpressionIllegal",
    "GroupMoved",
    "GroupNotExist",
    "InvalidParameter",
    "LocalProtocolError",
    "MessageIllegal",
    "MessageRefused",
    "MessageTypeError",
    "NoPermission",
    "NoRoute",
    "OffsetOutOfRange",
    "QueryNotFound",
    "RemoteError",
    "RemoteProtocolError",
    "ReplicasMissing",
    "RequestNotSupported",
    "RequestTimeout",
    "ResponseCode",
    "SendFailed",
    "ServiceNotAvailable",
    "StoreClosed",
    "StoreCorrupt",
    "StoreError",
    "StoreFailed",
    "StoreFollows",
    "StoreLocked",
    "SubscriptionConflict",
    "SubscriptionFault",
    "TlsFailed",
    "TopicNotExist",
    "remote_error",
]


class ResponseCode(IntEnum):
    """Response codes as they travel on the wire."""

    SUCCESS = 0
    SYSTEM_ERROR = 1
    SYSTEM_BUSY = 2
    REQUEST_CODE_NOT_SUPPORTED = 3
    TRANSACTION_FAILED = 4
    FLUSH_DISK_TIMEOUT = 10
    SLAVE_NOT_AVAILABLE = 11
    FLUSH_SLAVE_TIMEOUT = 12
    MESSAGE_ILLEGAL = 13
    SERVICE_NOT_AVAILABLE = 14
    VERSION_NOT_SUPPORTED = 15
    NO_PERMISSION = 16
    TOPIC_NOT_EXIST = 17
    TOPIC_EXIST_ALREADY = 18
    PULL_NOT_FOUND = 19
    PULL_RETRY_IMMEDIATELY = 20
    PULL_OFFSET_MOVED = 21
    QUERY_NOT_FOUND = 22
    SUBSCRIPTION_PARSE_FAILED = 23
    SUBSCRIPTION_NOT_EXIST = 24
    SUBSCRIPTION_NOT_LATEST = 25
    SUBSCRIPTION_GROUP_NOT_EXIST = 26
    FILTER_DATA_NOT_EXIST = 27
    FILTER_DATA_NOT_LATEST = 28
    INVALID_PARAMETER = 29
    TRANSACTION_SHOULD_COMMIT = 200
    TRANSACTION_SHOULD_ROLLBACK = 201
    TRANSACTION_STATE_UNKNOW = 202
    TRANSACTION_STATE_GROUP_WRONG = 203
    NO_BUYER_ID = 204
    NOT_IN_CURRENT_UNIT = 205
    CONSUMER_NOT_ONLINE = 206
    CONSUME_MSG_TIMEOUT = 207
    NO_MESSAGE = 208
    POLLING_FULL = 209
    POLLING_TIMEOUT = 210
    BROKER_NOT_EXIST = 211
    BROKER_DISPATCH_NOT_COMPLETE = 212
    BROADCAST_CONSUMPTION = 213
    FLOW_CONTROL = 215
    NOT_LEADER_FOR_QUEUE = 501
    ILLEGAL_OPERATION = 604
    GO_AWAY = 1500
    CONTROLLER_FENCED_MASTER_EPOCH = 2000
    CONTROLLER_FENCED_SYNC_STATE_SET_EPOCH = 2001
    CONTROLLER_INVALID_MASTER = 2002
    CONTROLLER_INVALID_REPLICAS = 2003
    CONTROLLER_MASTER_NOT_AVAILABLE = 2004
    CONTROLLER_INVALID_REQUEST = 2005
    CONTROLLER_BROKER_NOT_ALIVE = 2006
    CONTROLLER_NOT_LEADER = 2007
    CONTROLLER_BROKER_METADATA_NOT_EXIST = 2008
    CONTROLLER_INVALID_CLEAN_BROKER_METADATA = 2009
    CONTROLLER_BROKER_NEED_TO_BE_REGISTERED = 2010
    CONTROLLER_MASTER_STILL_EXIST = 2011
    CONTROLLER_ELECT_MASTER_FAILED = 2012
    CONTROLLER_ALTER_SYNC_STATE_SET_FAILED = 2013
    CONTROLLER_BROKER_ID_INVALID = 2014
    USER_NOT_EXIST = 3001
    POLICY_NOT_EXIST = 3002
    GROUP_MOVED = 31101
    """Our own: a message group is not at home in this queue, or not any more."""
    SUBSCRIPTION_CONFLICT = 31102
    """Our own: a strict consumer group has members that want other messages."""


class CometError(Exception):
    """Root of every error that CometMQ raises on purpose."""


class LocalProtocolError(CometError, ValueError):
    """We were asked to send something the protocol cannot carry."""


class MessageTypeError(LocalProtocolError, TypeError):
    """A message, or a field of it, is of the wrong type."""


class RemoteProtocolError(CometError):
    """The peer sent bytes that are not the protocol; the connection is of no further use."""


class CodecError(RemoteProtocolError):
    """A stored message, batch or header does not decode; the text names position and cause."""


class RemoteError(CometError):
    """The peer answered with ``code`` (see :class:`ResponseCode`) and ``remark``."""

    retriable = False

    def __init__(self, code: int, remark: str | None = None) -> None:
        self.code = code
        self.remark = remark or ""
        super().__init__(f"{_code_name(code)}: {self.remark}" if remark else _code_name(code))


class BrokerBusy(RemoteError):
    """SYSTEM_BUSY or FLOW_CONTROL: the same request may succeed a moment later."""

    retriable = True


class ServiceNotAvailable(RemoteError):
    """The broker refuses writes for now (disk full, stopping, a slave)."""

    retriable = True


class NoPermission(RemoteError):
    """Topic, group, broker or account does not allow this."""


class AccessDenied(NoPermission):
    """The peer knows no such access key, or the signature is not its, or it may not do this."""


class TopicNotExist(RemoteError):
    """The topic is unknown and may not be created automatically."""


class GroupNotExist(RemoteError):
    """The consumer group is unknown and may not be created automatically."""


class MessageRefused(RemoteError):
    """The message breaks a limit (size, properties, name); sending it again cannot help."""


class InvalidParameter(RemoteError):
    """A header field is out of range."""


class GroupMoved(RemoteError):
    """The topic is growing or shrinking, and the message group belongs to another queue, or waits
    until its consumers are through with the old one."""

    retriable = True


class QueryNotFound(RemoteError):
    """Nothing is stored under what was asked for."""


class SubscriptionConflict(RemoteError):
    """The consumer group is strict, and its members want other messages than this one."""


class SubscriptionFault(RemoteError):
    """The broker does not know, or no longer knows, this subscription."""


class RequestNotSupported(RemoteError):
    """The peer does not serve this request code."""


REMOTE_ERRORS: Final[dict[int, type[RemoteError]]] = {
    ResponseCode.SYSTEM_BUSY: BrokerBusy,
    ResponseCode.FLOW_CONTROL: BrokerBusy,
    ResponseCode.REQUEST_CODE_NOT_SUPPORTED: RequestNotSupported,
    ResponseCode.MESSAGE_ILLEGAL: MessageRefused,
    ResponseCode.SERVICE_NOT_AVAILABLE: ServiceNotAvailable,
    ResponseCode.NO_PERMISSION: NoPermission,
    ResponseCode.TOPIC_NOT_EXIST: TopicNotExist,
    ResponseCode.QUERY_NOT_FOUND: QueryNotFound,
    ResponseCode.SUBSCRIPTION_PARSE_FAILED: SubscriptionFault,
    ResponseCode.SUBSCRIPTION_NOT_EXIST: SubscriptionFault,
    ResponseCode.SUBSCRIPTION_NOT_LATEST: SubscriptionFault,
    ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST: GroupNotExist,
    ResponseCode.INVALID_PARAMETER: InvalidParameter,
    ResponseCode.GROUP_MOVED: GroupMoved,
    ResponseCode.SUBSCRIPTION_CONFLICT: SubscriptionConflict,
}


_DENIALS: Final = (
    "AclException",  # brokers before 5.3, mostly with code SYSTEM_ERROR
    "check signature failed",  # the rest: 5.x, with code NO_PERMISSION
    "username cannot be null",
    "User:",
    "no permission to access",
    "accessKey",  # our servers with a plain_acl.yml
    "No acl config for",
)
"""How servers word a denial; no code of RocketMQ's means that alone."""
_DENIAL_HINT: Final = "check access_key= and secret_key= and what that account may do"


def _code_name(code: int) -> str:
    try:
        return f"{ResponseCode(code).name} ({code})"
    except ValueError:
        return f"response code {code}"


def remote_error(code: int, remark: str | None = None) -> RemoteError:
    """The exception for an answer's ``code``; codes we do not tell apart give the parent class."""
    if remark and any(word in remark for word in _DENIALS):
        return AccessDenied(code, f"{remark}; {_DENIAL_HINT}")
    return REMOTE_ERRORS.get(code, RemoteError)(code, remark)


class StoreError(CometError):
    """A store directory or file cannot do what was asked."""


class StoreCorrupt(StoreError):
    """A store file does not hold what its format demands; the text names file and position."""


class DiskFull(StoreError):
    """The disk is above its watermark or has no block left; reads go on, writes are refused."""


class MemoryShort(StoreError):
    """The machine or the container has too little memory left; reads go on, writes are refused."""


class StoreFollows(StoreError):
    """The store takes its records from a master's log, so it takes none from producers."""


class ReplicasMissing(StoreError):
    """Fewer replicas are in sync than every message must have; nothing was stored."""


class StoreLocked(StoreError):
    """Another process has this store directory open."""


class StoreClosed(StoreError):
    """The store was closed, or has not been loaded yet."""


class StoreFailed(StoreClosed):
    """The disk did not take what was written: no more writes until a restart, reads go on."""


class MessageIllegal(StoreError):
    """The record breaks a limit of the store; storing it again cannot help."""


class ControllerError(CometError):
    """A controller could not record a decision."""


class DocumentChanged(ControllerError):
    """The document is not the one that the change was made from; read it again."""


class LeadershipLost(ControllerError):
    """Another controller leads, or may lead: what this one decided is not recorded."""


class ClientError(CometError):
    """Our client could not do what was asked; the cause is on this side or the way there."""


class RequestTimeout(ClientError, TimeoutError):
    """No answer came in time; the request may or may not have been carried out."""


class ConnectFailed(ClientError, ConnectionError):
    """No connection to the address could be made, or it broke before the answer."""


class TlsFailed(ConnectFailed):
    """The encrypted connection did not come about; trying again does not help."""


class NoRoute(ClientError):
    """No name server knows a broker for the topic."""


class NoBroker(NoRoute):
    """A broker is missing: none is registered at the name servers, or the topic has no master now.

    A cluster that starts is in this state for a moment, so sends are tried again.
    """


class ClientClosed(ClientError):
    """The client was closed or never started."""


class SendFailed(ClientError):
    """The tries of a send failed in different ways; the text lists all, ``__cause__`` is the last.

    Tries that failed in one way raise the error of that way, such as `ConnectFailed`.
    """


class OffsetOutOfRange(ClientError):
    """The broker does not hold the queue offset asked for: expired, or not written yet.

    ``queue_offset`` was asked for; the queue holds ``min_offset`` up to, not including,
    ``max_offset``.
    """

    def __init__(self, text: str, queue_offset: int, min_offset: int, max_offset: int) -> None:
        super().__init__(text, queue_offset, min_offset, max_offset)
        self.queue_offset = queue_offset
        self.min_offset = min_offset
        self.max_offset = max_offset

    def __str__(self) -> str:
        return str(self.args[0])


class ConfigError(CometError, ValueError):
    """A setting is unknown or out of range; the text names key, value and what is accepted."""


class ConfigTypeError(ConfigError, TypeError):
    """An argument is of the wrong type; the text names it, its value and what is accepted."""


class ExpressionIllegal(ConfigError):
    """An SQL92 filter is not written as one.

    ``line`` and ``column`` count characters from 1; ``faulty`` is the offending piece of text as it
    was written, empty at the end; ``expected`` says what would be right there.
    """

    def __init__(self, line: int, column: int, expected: str, faulty: str, hint: str = "") -> None:
        self.line = line
        self.column = column
        self.expected = expected
        self.faulty = faulty
        shown = f"{faulty[:40]}…" if len(faulty) > 40 else faulty
        sentence = (
            f"SQL92 filter, line {line} column {column}: expected {expected},"
            f" found {shown or 'the end'}"
        )
        super().__init__(f"{sentence}; {hint}" if hint else sentence)


class NotComparable(CometError):
    """A property's value is not what an SQL92 filter compares it with; it does not match."""
