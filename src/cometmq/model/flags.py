"""Bit fields of the protocol and the store: sysFlag, pull sysFlag, topic permissions.

Source: ``MessageSysFlag``, ``PullSysFlag`` and ``PermName`` of RocketMQ 5.4.0.
"""

from typing import Final

__all__ = [
    "BORN_HOST_V6",
    "COMPRESSED",
    "COMPRESSION_LZ4",
    "COMPRESSION_MASK",
    "COMPRESSION_ZLIB",
    "COMPRESSION_ZSTD",
    "INNER_BATCH",
    "MULTI_TAGS",
    "NEED_UNWRAP",
    "PERM_INHERIT",
    "PERM_PRIORITY",
    "PERM_READ",
    "PERM_WRITE",
    "PULL_CLASS_FILTER",
    "PULL_COMMIT_OFFSET",
    "PULL_LITE",
    "PULL_SUBSCRIPTION",
    "PULL_SUSPEND",
    "STORE_HOST_V6",
    "TRANSACTION_COMMIT",
    "TRANSACTION_MASK",
    "TRANSACTION_NOT",
    "TRANSACTION_PREPARED",
    "TRANSACTION_ROLLBACK",
    "perm_text",
]

COMPRESSED: Final = 0x1
MULTI_TAGS: Final = 0x2
TRANSACTION_NOT: Final = 0x0
TRANSACTION_PREPARED: Final = 0x4
TRANSACTION_COMMIT: Final = 0x8
TRANSACTION_ROLLBACK: Final = 0xC
TRANSACTION_MASK: Final = 0xC
BORN_HOST_V6: Final = 0x10
STORE_HOST_V6: Final = 0x20
NEED_UNWRAP: Final = 0x40
INNER_BATCH: Final = 0x80
COMPRESSION_MASK: Final = 0x700
COMPRESSION_LZ4: Final = 0x100
COMPRESSION_ZSTD: Final = 0x200
COMPRESSION_ZLIB: Final = 0x300

PULL_COMMIT_OFFSET: Final = 0x1
PULL_SUSPEND: Final = 0x2
PULL_SUBSCRIPTION: Final = 0x4
PULL_CLASS_FILTER: Final = 0x8
PULL_LITE: Final = 0x10

PERM_INHERIT: Final = 0x1
PERM_WRITE: Final = 0x2
PERM_READ: Final = 0x4
PERM_PRIORITY: Final = 0x8


def perm_text(perm: int) -> str:
    """Return a permission as tools print it: ``RW-``, ``R--``, ``RWX``."""
    return "".join(
        letter if perm & bit else "-"
        for letter, bit in (("R", PERM_READ), ("W", PERM_WRITE), ("X", PERM_INHERIT))
    )
