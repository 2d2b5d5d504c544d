"""A client in a process of its own, controlled by lines of JSON.

Job: start a driver program (Java, Go or ours), send it commands, collect its answers and events,
and let a caller wait for an event without sleeping.
Must not: know a scenario's expectations, nor how a driver was built (`peers`).

    lead -> {"id": 7, "do": "send", "name": "p", "mode": "sync", "messages": [...]}
    driver -> {"id": 7, "result": [...]}            or {"id": 7, "error": {"type":..., "text":...}}
    driver -> {"event": "message", "name": "c", "message": {...}}
"""

import base64
import hashlib
import json
import os
import subprocess
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

__all__ = ["DriverDied", "DriverError", "Message", "Peer", "Pending", "mark"]

Message = dict[str, Any]
"""A received message as a driver shows it."""

BODY_SHOWN_BYTES: Final = 1024
ANSWER_TIMEOUT_S: Final = 40.0
"""Longer than any single call of a client, so that its own time-out is what a test reports."""


class DriverError(Exception):
    """A command failed inside the driver; `described` holds type, text and, if any, code."""

    def __init__(self, command: str, described: Mapping[str, Any]) -> None:
        super().__init__(f"{command}: {described.get('type')}: {described.get('text')}")
        self.described = dict(described)


class DriverDied(Exception):
    """The driver's process ended, or did not answer in time."""


def mark(body: bytes) -> str:
    """A body as drivers show it: short ones in base64, long ones by length and digest."""
    if len(body) <= BODY_SHOWN_BYTES:
        return base64.b64encode(body).decode()
    return f"sha256:{len(body)}:{hashlib.sha256(body).hexdigest()}"


class Pending:
    """The pending answer to a command."""

    def __init__(self, peer: "Peer", number: int, command: str) -> None:
        self._peer = peer
        self._number = number
        self._command = command

    def result(self, timeout_s: float = ANSWER_TIMEOUT_S) -> Any:
        """Wait for the command's result."""
        answer = self._peer.wait_answer(self._number, self._command, timeout_s)
        if "error" in answer:
            raise DriverError(self._command, answer["error"])
        return answer["result"]


class Peer:
    """One driver process."""

    def __init__(self, name: str, command: Sequence[str], folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.name = name
        self.log_path = folder / "driver.log"
        self._log = self.log_path.open("wb")
        self._process = subprocess.Popen(
            list(command),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            cwd=folder,
            env={**os.environ, "HOME": str(folder)},  # Go keeps broadcasting offsets there
        )
        self._news = threading.Condition()
        self._answers: dict[int, dict[str, Any]] = {}
        self._messages: dict[str, list[Message]] = {}
        self._sent: dict[str, list[dict[str, Any]]] = {}
        self._is_ready = False
        self._is_ended = False
        self._number = 0
        self._reader = threading.Thread(target=self._read, name=f"read {name}", daemon=True)
        self._reader.start()
        try:
            self._wait(lambda: self._is_ready, "ready", ANSWER_TIMEOUT_S)
        except DriverDied:
            self.close()
            raise

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
        """Kill the driver like a crash: its clients do not unregister."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.kill()
        self._process.wait()
        self._reader.join()
        self._process.stdin.close()
        self._process.stdout.close()
        self._log.close()

    # -- commands ---------------------------------------------------------------------------

    def begin(self, do: str, **arguments: Any) -> Pending:
        """Send a command; the driver runs it concurrently with other commands."""
        with self._news:
            self._number += 1
            number = self._number
            line = json.dumps({"id": number, "do": do, **arguments})
            stdin = self._process.stdin
            assert stdin is not None
            try:
                stdin.write(line.encode() + b"\n")
                stdin.flush()
            except (OSError, ValueError) as error:  # the pipe broke, or `close` has closed it
                raise DriverDied(f"{self.name} ended: {self._tail()}") from error
        return Pending(self, number, do)

    def call(self, do: str, *, timeout_s: float = ANSWER_TIMEOUT_S, **arguments: Any) -> Any:
        """Send a command and wait for its result."""
        return self.begin(do, **arguments).result(timeout_s)

    def wait_answer(self, number: int, command: str, timeout_s: float) -> dict[str, Any]:
        """Wait for the answer to command `number`."""
        self._wait(lambda: number in self._answers, f"an answer to {command}", timeout_s)
        return self._answers.pop(number)

    # -- events -----------------------------------------------------------------------------

    def messages(self, name: str) -> list[Message]:
        """The messages that the push consumer `name` has received so far, in order."""
        with self._news:
            return list(self._messages.get(name, []))

    def wait_messages(
        self, name: str, is_enough: Callable[[list[Message]], bool], timeout_s: float = 30.0
    ) -> list[Message]:
        """Wait until the consumer `name` has received enough messages."""
        self._wait(
            lambda: is_enough(self._messages.get(name, [])),
            lambda: f"messages of {name}; it has {len(self._messages.get(name, []))}",
            timeout_s,
        )
        return self.messages(name)

    def wait_any(self, is_enough: Callable[[], bool], what: str, timeout_s: float = 30.0) -> None:
        """Wait until a condition over this driver's events holds; it runs at each event."""
        self._wait(is_enough, what, timeout_s)

    def sent(self, name: str) -> list[dict[str, Any]]:
        """The answers to the sends of the producer `name` so far, in order."""
        with self._news:
            return list(self._sent.get(name, []))

    def wait_sent(self, name: str, count: int, timeout_s: float = 30.0) -> None:
        """Wait until `count` sends of the producer `name` were answered."""
        self._wait(
            lambda: len(self._sent.get(name, [])) >= count,
            lambda: f"{count} answers for {name}; it has {len(self._sent.get(name, []))}",
            timeout_s,
        )

    def on_message(self, name: str, message: Message) -> None:
        """A push consumer received a message; called in the reading thread."""
        self._messages.setdefault(name, []).append(message)

    def on_sent(self, name: str, result: dict[str, Any]) -> None:
        """A send of a producer was answered; called in the reading thread."""
        self._sent.setdefault(name, []).append(result)

    def _wait(
        self, holds: Callable[[], bool], what: str | Callable[[], str], timeout_s: float
    ) -> None:
        with self._news:
            if self._news.wait_for(lambda: holds() or self._is_ended, timeout_s) and holds():
                return
            text = what if isinstance(what, str) else what()
            how = "ended" if self._is_ended else f"brought nothing for {timeout_s} s"
            raise DriverDied(f"{self.name} {how}, waiting for {text}; {self._tail()}")

    def _tail(self) -> str:
        lines = self.log_path.read_text("utf-8", "replace").splitlines()[-15:]
        return "its log ends:\n" + "\n".join(lines)

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if not line.endswith(b"\n"):
                break  # it was killed while it wrote
            event = json.loads(line)
            with self._news:
                if "id" in event:
                    self._answers[event["id"]] = event
                elif event["event"] == "message":
                    self.on_message(event["name"], event["message"])
                elif event["event"] == "sent":
                    self.on_sent(event["name"], event["result"])
                elif event["event"] == "ready":
                    self._is_ready = True
                self._news.notify_all()
        with self._news:
            self._is_ended = True
            self._news.notify_all()
