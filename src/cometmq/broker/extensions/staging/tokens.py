"""The table of staged tokens: what waits on this broker to be published.

Knows each token's blocks and their physical offsets, checks what a publish claims of them, and says
which tokens may go.

A *token* is what one attempt at one part of a batch has staged here; its *blocks* are records of
`STAGED_TOPIC`, numbered from 0, each with the messages of one queue
(`cometmq.wire.extensions.staging`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cometmq.broker.base.state import Refusal
from cometmq.errors import ResponseCode
from cometmq.wire.extensions.staging import StagedEntry, TokenClaim

__all__ = ["StagedBlock", "StagedToken", "StagedTokens"]


class StagedBlock(msgspec.Struct, gc=False, frozen=True):
    """A block's record: its physical offsets, and its queue offset in the staged queue."""

    physical_offset: int
    end_offset: int
    queue_offset: int
    topic: str
    queue_id: int
    rows: int


class StagedToken(msgspec.Struct, eq=False):
    """A token and all its blocks."""

    token: str
    sink: str
    batch_id: int
    part: str
    updated_ms: int
    rows: int = 0
    crc: int = 0
    byte_count: int = 0
    blocks: list[StagedBlock] = []


class StagedTokens:
    """All tokens, in the order of their first blocks."""

    __slots__ = ("_tokens", "byte_count", "revision")

    def __init__(self) -> None:
        self._tokens: dict[str, StagedToken] = {}
        self.byte_count = 0
        self.revision = 0
        """Moves when tokens go."""

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[StagedToken]:
        return iter(self._tokens.values())

    def get(self, token: str) -> StagedToken | None:
        """The token of this name."""
        return self._tokens.get(token)

    def is_repeated(self, sink: str, batch_id: int, token: str, sequence: int) -> bool:
        """Whether this block is there already; False when it is the next.

        Raises:
            Refusal: the token is another sink's or batch's, or blocks before this one are missing.
        """
        known = self._tokens.get(token)
        if known is not None and (known.sink, known.batch_id) != (sink, batch_id):
            raise _foreign(known, sink, batch_id)
        following = 0 if known is None else len(known.blocks)
        if sequence > following:
            raise Refusal(
                ResponseCode.QUERY_NOT_FOUND,
                f"block {sequence} of token {token} cannot follow: this broker has {following} of "
                "the blocks before it (the others were dropped, or lost in a crash); stage the "
                "part again",
            )
        return sequence < following

    def add(
        self,
        names: tuple[str, str, int, str],
        block: StagedBlock,
        data: bytes | memoryview,
        now_ms: int,
    ) -> None:
        """Note a block that was put; `names` are token, sink, batch id and part."""
        token = self._tokens.get(names[0])
        if token is None:
            token = StagedToken(*names, now_ms)
            token.blocks = []
            self._tokens[names[0]] = token
        token.blocks.append(block)
        token.rows += block.rows
        token.crc = zlib.crc32(data, token.crc)
        token.byte_count += len(data)
        token.updated_ms = now_ms
        self.byte_count += len(data)

    def check(self, sink: str, batch_id: int, claims: Iterable[TokenClaim]) -> list[StagedToken]:
        """The tokens a publish names, if each is here as it claims.

        Raises:
            Refusal: one is missing, incomplete, named twice, or of another sink or batch.
        """
        found: dict[str, StagedToken] = {}
        for claim in claims:
            token = self._tokens.get(claim.token)
            if token is None:
                raise Refusal(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"token {claim.token} is not staged on this broker: it was dropped, collected "
                    "after stagedTimeoutMinutes, or lost in a crash; stage the batch again",
                )
            if (token.sink, token.batch_id) != (sink, batch_id):
                raise _foreign(token, sink, batch_id)
            if claim.token in found:
                raise Refusal(
                    ResponseCode.INVALID_PARAMETER,
                    f"token {claim.token} is named twice; name each part once",
                )
            if (token.rows, token.crc) != (claim.rows, claim.crc):
                raise Refusal(
                    ResponseCode.QUERY_NOT_FOUND,
                    f"token {claim.token} is incomplete: this broker has {token.rows} messages "
                    f"with CRC {token.crc:#010x}, the part claims {claim.rows} with "
                    f"{claim.crc:#010x}; stage the batch again",
                )
            found[claim.token] = token
        return list(found.values())

    def drop(self, tokens: Iterable[StagedToken]) -> int:
        """Forget tokens; how many were there."""
        count = 0
        for token in tokens:
            if self._tokens.pop(token.token, None) is not None:
                self.byte_count -= token.byte_count
                count += 1
        self.revision += bool(count)
        return count

    def up_to(self, sink: str, batch_id: int) -> list[StagedToken]:
        """Tokens of a sink that can never be published: their batch was."""
        return [
            token
            for token in self._tokens.values()
            if token.sink == sink and token.batch_id <= batch_id
        ]

    def before(self, time_ms: int) -> list[StagedToken]:
        """Tokens that got their last block before a time."""
        return [token for token in self._tokens.values() if token.updated_ms < time_ms]

    @property
    def first_physical_offset(self) -> int | None:
        """The physical offset of the oldest block."""
        for token in self._tokens.values():
            return token.blocks[0].physical_offset
        return None

    @property
    def first_queue_offset(self) -> int | None:
        """The queue offset of the oldest block in the staged queue."""
        for token in self._tokens.values():
            return token.blocks[0].queue_offset
        return None

    def listing(self, sink: str | None) -> list[StagedEntry]:
        """Return the tokens of one sink, or of all, for LIST_STAGED."""
        return [
            StagedEntry(
                token.token,
                token.sink,
                token.batch_id,
                token.part,
                token.rows,
                token.byte_count,
                token.crc,
                token.updated_ms,
            )
            for token in self._tokens.values()
            if sink is None or token.sink == sink
        ]


def blocks_of(tokens: Sequence[StagedToken]) -> list[StagedBlock]:
    """The blocks of tokens in the order in which they are published."""
    return [block for token in tokens for block in token.blocks]


def _foreign(token: StagedToken, sink: str, batch_id: int) -> Refusal:
    return Refusal(
        ResponseCode.INVALID_PARAMETER,
        f"token {token.token} belongs to batch {token.batch_id} of sink {token.sink}, not to batch "
        f"{batch_id} of {sink}",
    )
