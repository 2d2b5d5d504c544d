"""A server as a process, whose lines a test waits for."""

import re
import signal
import subprocess
import threading
import time

import pytest

WAIT_S = 90.0


class ForkingServer:
    """A server process and the lines that it has written to both streams."""

    def __init__(self, process: "subprocess.Popen[str]") -> None:
        self.process = process
        self._lines: list[str] = []
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._news:
                self._lines.append(line)
                self._news.notify_all()

    @property
    def log(self) -> str:
        """Return everything that the process has written."""
        with self._news:
            return "".join(self._lines)

    def wait_for(self, pattern: str) -> "re.Match[str]":
        """Wait for a match in the log; fail with the whole log when the process ends first."""
        deadline = time.monotonic() + WAIT_S
        while (match := re.search(pattern, self.log)) is None:
            if self.process.poll() is not None or time.monotonic() > deadline:
                pytest.fail(f"no {pattern!r} in:\n{self.log}")
            with self._news:
                self._news.wait(0.1)
        return match

    def say(self, line: str) -> None:
        """Write a line to the standard input of the process."""
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def end(self) -> str:
        """End the process with SIGTERM, check exit code 0 and return its log."""
        self.process.terminate()
        return self.ended()

    def ended(self) -> str:
        """Wait for the end of the process, check exit code 0 and return its log."""
        try:
            status = self.process.wait(WAIT_S)
        except subprocess.TimeoutExpired:
            # With PYTHONFAULTHANDLER the process says where each of its threads stands.
            self.process.send_signal(signal.SIGABRT)
            self._reader.join(5)
            pytest.fail(f"the process does not end:\n{self.log}")
        self._reader.join(WAIT_S)
        assert status == 0, self.log
        return self.log
