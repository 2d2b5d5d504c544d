"""A wire tap: a relay between a client and a server that counts the frames passing through.

Job: show a foreign program's requests, their header encoding and their answers, so that a scenario
cannot pass for another reason than the intended one.
Must not: change or delay a byte.
"""

import contextlib
import socket
import threading
from collections import Counter
from collections.abc import Callable
from types import TracebackType
from typing import Final, Self

from cometmq.net.network import parse_address
from cometmq.wire.frame.framing import FrameReader

__all__ = ["Tap"]

READ_BYTES: Final = 256 * 1024


class Tap:
    """Listens on a port of 127.0.0.1 and relays each connection to `target`."""

    def __init__(self, target: str) -> None:
        self._target = parse_address(target)
        self._lock = threading.Lock()
        self._sockets: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._is_closed = False
        self.requests: Counter[int] = Counter()
        """How often each request code was seen."""
        self.types: Counter[int] = Counter()
        """How often each header encoding was seen in requests: 0 is JSON, 1 is binary."""
        self.answers: dict[int, Counter[int]] = {}
        """Answers by request code and response code."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._start(self._accept)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Cut every connection."""
        self._is_closed = True
        with self._lock:
            sockets = [*self._sockets, self._listener]
        for one in sockets:
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
            one.close()
        for thread in self._threads:
            thread.join()

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_closed:
            try:
                near, _ = self._listener.accept()
            except OSError:
                return
            try:
                far = socket.create_connection(self._target)
            except OSError:
                near.close()
                continue
            for one in (near, far):
                one.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            with self._lock:
                self._sockets += [near, far]
            asked: dict[tuple[bool, int], int] = {}
            self._start(self._relay, near, far, asked, True)
            self._start(self._relay, far, near, asked, False)

    def _relay(
        self,
        source: socket.socket,
        target: socket.socket,
        asked: dict[tuple[bool, int], int],
        is_client: bool,
    ) -> None:
        """Relay one direction; `asked` maps (requester, opaque) to the request's code."""
        reader = FrameReader()
        with contextlib.suppress(OSError):
            while data := source.recv(READ_BYTES):
                for frame in reader.receive(data):
                    with self._lock:
                        if frame.is_response:
                            code = asked.pop((not is_client, frame.opaque), None)
                            if code is not None:
                                self.answers.setdefault(code, Counter())[frame.code] += 1
                        else:
                            asked[is_client, frame.opaque] = frame.code
                            self.requests[frame.code] += 1
                            self.types[frame.serialize_type] += 1
                target.sendall(data)
        for one in (source, target):
            with contextlib.suppress(OSError):
                one.shutdown(socket.SHUT_RDWR)
