"""What a client does when its process is copied by ``fork``.

Job: tell every client in a child process that it is a copy, and take the inherited sockets away
without disturbing the parent.
Must not: touch the inherited event loop, its selector or its transports: the epoll instance is
shared with the parent, so unregistering a socket in the child would silence it in the parent.

Theory: after ``fork`` both processes hold the same connections.  Closing one in the ordinary way
would send a TLS goodbye, or remove it from the shared epoll; using one would mix two processes'
requests in one stream.  So the child points each inherited descriptor at the null device
(``dup2``): the child's reference to the connection is gone, the parent's is untouched, and the
number stays taken, so that a late destructor closes the null device and nothing else.  The old
objects are kept alive for ever for the same reason.
"""

import os
import weakref
from typing import Any, Final, Protocol

__all__ = ["ForkAware", "abandon_descriptors", "generation", "keep_forever", "register"]


class ForkAware(Protocol):
    """A client that wants to know of a fork."""

    def after_fork(self) -> None:
        """Called in the child before any other Python code of it; must not raise."""
        ...


_clients: "weakref.WeakSet[Any]" = weakref.WeakSet()
_graveyard: Final[list[object]] = []
_generation = 0


def generation() -> int:
    """How many forks lie between the first process and this one."""
    return _generation


def register(client: ForkAware) -> None:
    """Have ``client.after_fork()`` called in every child process."""
    _clients.add(client)


def keep_forever(inherited: object) -> None:
    """Never run the destructor of an object that belongs to the parent process."""
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
