"""How long requests take that are answered at once, by request code and answer.

A request whose answer comes later (a held pull, a send that waits for a flush or a replica) is in
`rocketmq_rpc_latency` of RocketMQ and is not in ours: nobody follows it here.

Source of the labels: RemotingMetricsManager of RocketMQ 5.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

from cometmq.core.base.exposition import Histogram
from cometmq.errors import ResponseCode
from cometmq.net.limits import count_frames
from cometmq.net.server import Answer, Front, Handler, Run, ServerConnection
from cometmq.wire.command.codes import RequestCode
from cometmq.wire.command.command import FLAG_ONEWAY, JSON, RemotingCommand

__all__ = ["RequestLatencies", "answer_name", "request_name"]

BOUNDS_MS: Final = (1, 3, 5, 7, 10, 100, 1000, 2000, 3000)
_ANSWERED: Final = b'"flag":1'
_CODE: Final = b'{"code":'


class RequestLatencies:
    """Wraps what serves requests; `histograms` by request code, answer's code and result."""

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self.histograms: dict[tuple[int, int, str], Histogram] = {}

    def _add(self, key: tuple[int, int, str], took_s: float, count: int = 1) -> None:
        histogram = self.histograms.get(key)
        if histogram is None:
            histogram = self.histograms[key] = Histogram(BOUNDS_MS)
        histogram.add(took_s * 1000, count)

    def handlers(self, table: Mapping[int, Handler]) -> dict[int, Handler]:
        """Return the processors, each with a clock around it."""
        return {code: partial(self._serve, handler) for code, handler in table.items()}

    def _serve(
        self,
        handler: Handler,
        request: RemotingCommand,
        connection: ServerConnection,
        now_ms: int,
    ) -> Answer:
        monotonic = self._monotonic
        began = monotonic()
        try:
            answer = handler(request, connection, now_ms)
        except Exception:
            key = request.code, int(ResponseCode.SYSTEM_ERROR), "process_failed"
            self._add(key, monotonic() - began)
            raise
        if request.flag & FLAG_ONEWAY:
            self._add((request.code, 0, "oneway"), monotonic() - began)
        elif answer is not None:
            self._add((request.code, _code_of(answer), "success"), monotonic() - began)
        return answer

    def run(self, run: Run, code: int) -> Run:
        """Return what serves several requests of one code, with a clock around it."""

        def serve(
            commands: Sequence[Any], start: int, connection: ServerConnection, now_ms: int
        ) -> tuple[int, bytes]:
            began = self._monotonic()
            end, answers = run(commands, start, connection, now_ms)
            self._answered(code, answers, began)
            return end, answers

        return serve

    def front(self, front: Front | None, code: int) -> Front | None:
        """Return what serves plain requests of one code, with a clock around it."""
        if front is None:
            return None

        def serve(data: bytes, connection: ServerConnection, now_ms: int) -> tuple[int, bytes]:
            began = self._monotonic()
            end, answers = front(data, connection, now_ms)
            if answers:
                self._answered(code, answers, began)
            return end, answers

        return serve

    def _answered(self, code: int, answers: bytes, began: float) -> None:
        """Count the answers, all of which have taken this long; a refusal among them counts too."""
        count = answers.count(_ANSWERED) or count_frames(answers)[0]
        if count:
            self._add((code, 0, "success"), self._monotonic() - began, count)


def _code_of(answer: RemotingCommand | bytes | list[Any]) -> int:
    if isinstance(answer, RemotingCommand):
        return answer.code
    frame = answer[0] if isinstance(answer, list) else answer
    if frame[4] != JSON:
        return int.from_bytes(frame[8:10])
    if frame[8:16] != _CODE:
        return 0
    end = 16
    while frame[end : end + 1].isdigit():
        end += 1
    return int(bytes(frame[16:end]) or b"0")


def request_name(code: int) -> str:
    """Return RocketMQ's name of a request code, or the number."""
    try:
        return RequestCode(code).name
    except ValueError:
        return str(code)


def answer_name(code: int) -> str:
    """Return RocketMQ's name of an answer's code, or the number."""
    try:
        return ResponseCode(code).name
    except ValueError:
        return str(code)
