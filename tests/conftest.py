"""What every test shares: hypothesis settings, and that a run without a test is a failure."""

import os

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "default",
    max_examples=int(os.environ.get("HYPOTHESIS_EXAMPLES", "50")),
    deadline=None,  # timings are never asserted; pytest-timeout catches a hang
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("default")


class ExecutedCount:
    """Counts tests that really ran: a run of skips alone must not look like a pass."""

    def __init__(self) -> None:
        self.executed = 0

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Count each test whose own body ran, whatever came of it."""
        if report.when == "call" and not report.skipped:
            self.executed += 1

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        """Turn a green run that executed nothing into "no tests collected" (5)."""
        if exitstatus == 0 and self.executed == 0 and not session.config.option.collectonly:
            session.exitstatus = pytest.ExitCode.NO_TESTS_COLLECTED


def pytest_configure(config: pytest.Config) -> None:
    """Watch every run, also one of a single file."""
    config.pluginmanager.register(ExecutedCount(), "executed-count")
