"""Logs when something stops working and when it works again, and no repetition in between."""

import logging
from collections.abc import Callable

__all__ = ["Outages"]

log = logging.getLogger("cometmq.client")


class Outages:
    """The outages of one client, each under a text that names the activity.

    The first failure is logged with its cause, the next ones at level DEBUG, and the end with the
    time that has passed.
    """

    def __init__(self, monotonic: Callable[[], float]) -> None:
        self._monotonic = monotonic
        self._began: dict[str, float] = {}
        self._logged: set[str] = set()

    def began(self, activity: str) -> None:
        """Note that something has stopped, before anybody has tried it again."""
        self._began.setdefault(activity, self._monotonic())

    def failed(self, activity: str, cause: object, *, level: int = logging.WARNING) -> None:
        """Log a failure; a repeated one at level DEBUG."""
        self.began(activity)
        log.log(logging.DEBUG if activity in self._logged else level, "%s: %s", activity, cause)
        self._logged.add(activity)

    def ended(self, activity: str) -> None:
        """Log that it works again, if it had stopped."""
        if activity in self._began:
            self._logged.discard(activity)
            away_s = self._monotonic() - self._began.pop(activity)
            log.info("%s: works again after %.1f s", activity, away_s)
