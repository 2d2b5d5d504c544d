"""Keeps clients working when ``fork`` copies their process.

Each client in a child process learns that it is a copy, and gives up the inherited sockets without
disturbing the parent.  It must not touch the inherited event loop, selector or transports: parent
and child share the epoll instance, so a socket unregistered in the child falls silent in the
parent.

After ``fork`` both processes own the same connections.  An ordinary close would send a TLS goodbye
or change the shared epoll instance; a request would mix two processes' bytes in one stream.  So the
child points each inherited descriptor at the null device (``dup2``).  That drops the child's
reference to the connection, leaves the parent's alone and keeps the number in use, so a late
destructor closes the null device and nothing else.  The old objects stay alive for the same reason.
"""

import os
import weakref
from typing import Any, Final, Protocol

__all__ = ["ForkAware", "abandon_descriptors", "generation", "keep_forever", "register"]


class ForkAware(Protocol):
    """A client that is told about a fork."""

    def after_fork(self) -> None:
        """Called in the child process before any other Python code; must not raise."""
        ...


_clients: "weakref.WeakSet[Any]" = weakref.WeakSet()
_graveyard: Final[list[object]] = []
_generation = 0


def generation() -> int:
    """The number of forks between the first process and this one."""
    return _generation


def register(client: ForkAware) -> None:
    """Have ``client.after_fork()`` called in every child process."""
    _clients.add(client)


def keep_forever(inherited: object) -> None:
    """Keep an object of the parent process alive, so that its destructor never runs."""
    _graveyard.append(inherited)


def abandon_descriptors(descriptors: list[int]) -> None:
    """Replace inherited sockets by the null device, leaving the parent's connections alone."""
    if not descriptors:
        return
    null = os.open(os.devnull, os.O_RDWR)
    try:
        for descriptor in descriptors:
            if descriptor >= 0 and descriptor != null:
                os.dup2(null, descriptor, inheritable=False)
    finally:
        os.close(null)


def _after_fork_in_child() -> None:
    global _generation
    _generation += 1
    for client in list(_clients):
        client.after_fork()


if hasattr(os, "register_at_fork"):  # not on Windows, where nothing forks
    os.register_at_fork(after_in_child=_after_fork_in_child)
