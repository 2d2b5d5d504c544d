"""Exit codes of every command, and the table that maps errors to them.

| code | meaning                                                            |
|------|--------------------------------------------------------------------|
| 0    | done                                                               |
| 1    | the work was refused, or a check did not hold                      |
| 2    | wrong usage, name, message or configuration                        |
| 3    | no connection, no answer in time, or no address to listen on       |
| 4    | not found: topic, group, message, route, dataset                   |
| 5    | the store: damaged, locked by another process, full                |
| 6    | two sources were compared and are not equal                        |
| 130  | interrupted by Ctrl-C                                              |
| 143  | ended by SIGTERM; servers stop in order with 0, `consume` with 130 |
"""

from typing import Final

from cometmq import errors

__all__ = [
    "DIFFERENT",
    "FAILED",
    "INTERRUPTED",
    "NOT_FOUND",
    "STORE",
    "UNREACHABLE",
    "USAGE",
    "exit_code",
]

FAILED: Final = 1
USAGE: Final = 2
UNREACHABLE: Final = 3
NOT_FOUND: Final = 4
STORE: Final = 5
DIFFERENT: Final = 6
INTERRUPTED: Final = 130

_CODES: Final[tuple[tuple[tuple[type[BaseException], ...], int], ...]] = (
    ((errors.ConfigError, errors.LocalProtocolError), USAGE),
    ((errors.ConnectFailed, errors.RequestTimeout), UNREACHABLE),
    (
        (errors.NoRoute, errors.TopicNotExist, errors.GroupNotExist, errors.QueryNotFound),
        NOT_FOUND,
    ),
    ((errors.StoreError,), STORE),
)


def exit_code(error: BaseException) -> int:
    """The process exit code for ``error``; 1 for an error that the table does not name."""
    for kinds, code in _CODES:
        if isinstance(error, kinds):
            return code
    return FAILED
