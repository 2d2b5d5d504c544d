"""How a request is answered, and how a check refuses it."""

from __future__ import annotations

from collections.abc import Mapping

from cometmq.errors import ResponseCode
from cometmq.net.server import Answer, Handler, ServerConnection
from cometmq.wire.command.command import RemotingCommand, encode_response
from cometmq.wire.header.fast_decode import EndCommand

__all__ = ["Refusal", "answer", "refusing"]


class Refusal(Exception):
    """A check failed: the request is answered with this code and remark."""

    def __init__(self, code: int, remark: str, ext: Mapping[str, str] | None = None) -> None:
        super().__init__(remark)
        self.code = code
        self.remark = remark
        self.ext = ext


def answer(
    request: RemotingCommand | EndCommand,
    code: int = ResponseCode.SUCCESS,
    remark: str | None = None,
    ext: Mapping[str, str] | None = None,
    body: bytes = b"",
) -> bytes:
    """Encode the answer to a request in the request's own header encoding."""
    return encode_response(
        request.opaque, request.serialize_type, code, remark, dict(ext) if ext else {}, body
    )


def refusing(handler: Handler) -> Handler:
    """Turn a handler's `Refusal` into its answer."""

    def serve(request: RemotingCommand, connection: ServerConnection, now_ms: int) -> Answer:
        try:
            return handler(request, connection, now_ms)
        except Refusal as refusal:
            return answer(request, refusal.code, refusal.remark, refusal.ext)

    return serve
