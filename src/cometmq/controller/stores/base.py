"""What a controller asks of the store of its documents.

A document is bytes under a name, with a revision that grows with each change.  One controller at a
time leads, and only its changes are recorded: `swap` compares the leadership and the document's
revision in one step with the change.  So a controller that was deposed without noticing it, however
long it slept, records nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

__all__ = ["DocumentStore", "Leadership", "StoredDocument"]


@dataclass(frozen=True, slots=True)
class StoredDocument:
    """A document as it is recorded."""

    data: bytes
    revision: int


class Leadership(Protocol):
    """The right to record, from `DocumentStore.lead` until it ends."""

    async def read_all(self) -> dict[str, StoredDocument]:
        """Return every document by name.

        Raises:
            ControllerError: the store does not answer.
        """
        ...

    async def swap(self, name: str, revision: int, data: bytes | None) -> int:
        """Record a document (None: remove it) in place of one revision; return the new revision.

        Args:
            revision: the revision that the change was made from; 0 for a document that is new.

        Raises:
            DocumentChanged: the document has another revision.
            LeadershipLost: another controller leads, or may lead.
            ControllerError: the store does not answer: the change may be recorded, or not.
        """
        ...

    async def ended(self) -> None:
        """Return when the leadership has ended, or may have ended."""
        ...

    async def resign(self) -> None:
        """End the leadership, so that another controller leads at once."""
        ...


class DocumentStore(Protocol):
    """Documents that controllers share."""

    is_shared: bool
    """Whether other controllers may lead; else this one leads as soon as the store is open."""

    async def open(self) -> None:
        """Find out whether the store can be used at all.

        Raises:
            StoreError: it cannot, and waiting does not help.
        """
        ...

    async def lead(self, address: str) -> Leadership:
        """Wait until this controller leads; others then see its address."""
        ...

    async def leader(self) -> str | None:
        """Return the address of the controller that leads; None where none does.

        Raises:
            ControllerError: the store does not answer.
        """
        ...

    async def close(self) -> None:
        """Give up what the store needs: connections, locks."""
        ...
