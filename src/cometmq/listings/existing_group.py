"""Refuses the name of a consumer group that no broker knows."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cometmq.client import Admin

__all__ = ["require_group", "require_group_among"]


async def require_group(admin: "Admin", name: str) -> None:
    """Ask the brokers whether the group ``name`` exists.

    Raises:
        GroupNotExist: no broker knows the group; the error suggests the nearest name.
    """
    require_group_among(await admin.group_list(include_system=True), name)


def require_group_among(groups: Sequence[str], name: str) -> None:
    """Check that ``name`` is one of ``groups``.

    Raises:
        GroupNotExist: it is not; the error suggests the nearest name.
    """
    from cometmq.errors import GroupNotExist, ResponseCode

    if name not in groups:
        from difflib import get_close_matches

        near = get_close_matches(name, groups, n=1)
        hint = f"did you mean {near[0]}?" if near else "see cometmq group list"
        raise GroupNotExist(
            ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST, f"no broker knows the group {name}; {hint}"
        )
