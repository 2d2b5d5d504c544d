"""The `override` marker on every supported Python; `typing` has it since 3.12."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing_extensions import override
else:

    def override(method):
        """Mark `method` for the type checker; nothing happens at run time."""
        return method


__all__ = ["override"]
