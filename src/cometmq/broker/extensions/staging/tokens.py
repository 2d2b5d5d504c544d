"""The table of staged tokens: the messages that wait on this broker to be published.

The table has each token's blocks and their physical offsets.  It checks the claims of a publish
against them and lists the tokens that can be dropped.

A *token* names what one attempt at one part of a batch has staged on this broker.  Its *blocks* are
records of `STAGED_TOPIC`, numbered from 0.  Each block has messages of one queue
(`cometmq.wire.extensions.staging`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from cometmq.broker.base.state import Refusal
from cometmq.errors import ResponseCode
from cometmq.model.names import STAGED_TOPIC
from cometmq.store.message_store import MessageStore
from cometmq.wire.extensions.staging import StagedEntry, TokenClaim

__all__ = ["StagedBlock", "StagedToken", "StagedTokens"]


class StagedBlock(msgspec.Struct, gc=False, frozen=True):
    """The record of a block: its physical offsets and its queue offset in `STAGED_TOPIC`."""

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

    def __init__(self) -> None:
        self._tokens: dict[str, StagedToken] = {}
        self.byte_count = 0
        self.revision = 0
        """Grows by one whenever tokens are dropped."""

    def __len__(self) -> int:
        return len(self._tokens)

    def __iter__(self) -> Iterator[StagedToken]:
        return iter(self._tokens.values())

    def get(self, token: str) -> StagedToken | None:
        """The token of this name, or None."""
        return self._tokens.get(token)

    def is_repeated(self, sink: str, batch_id: int, token: str, sequence: int) -> bool:
        """Whether the broker has this block already; False when it is the next block.

        Raises:
            Refusal: the token belongs to another sink or batch, or earlier blocks are missing.
        """
        staged = self._tokens.get(token)
        if staged is not None and (staged.sink, staged.batch_id) != (sink, batch_id):
            raise _foreign(staged, sink, batch_id)
        following = 0 if staged is None else len(staged.blocks)
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
        name: tuple[str, str, int, str],
        block: StagedBlock,
        data: bytes | memoryview,
        now_ms: int,
    ) -> None:
        """Add a block that the store has; `name` has token, sink, batch id and part."""
        token = self._tokens.get(name[0])
        if token is None:
            token = StagedToken(*name, now_ms)
            token.blocks = []
            self._tokens[name[0]] = token
        token.blocks.append(block)
        token.rows += block.rows
        token.crc = zlib.crc32(data, token.crc)
        token.byte_count += len(data)
        token.updated_ms = now_ms
        self.byte_count += len(data)

    def check(self, sink: str, batch_id: int, claims: Iterable[TokenClaim]) -> list[StagedToken]:
        """The tokens that a publish names; each has the rows and the CRC that the publish claims.

        Raises:
            Refusal: a token is missing, incomplete, named twice, or of another sink or batch.
        """
        checked: dict[str, StagedToken] = {}
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
            if claim.token in checked:
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
            checked[claim.token] = token
        return list(checked.values())

    def drop(self, tokens: Iterable[StagedToken]) -> int:
        """Remove tokens and count those that were in the table."""
        count = 0
        for token in tokens:
            if self._tokens.pop(token.token, None) is not None:
                self.byte_count -= token.byte_count
                count += 1
        self.revision += bool(count)
        return count

    def up_to(self, sink: str, batch_id: int) -> list[StagedToken]:
        """Tokens of a sink that can never be published, because their batch or a later one was."""
        return [
            token
            for token in self._tokens.values()
            if token.sink == sink and token.batch_id <= batch_id
        ]

    def before(self, time_ms: int) -> list[StagedToken]:
        """Tokens whose last block came before a time."""
        return [token for token in self._tokens.values() if token.updated_ms < time_ms]

    @property
    def first_physical_offset(self) -> int | None:
        """The physical offset of the oldest block."""
        for token in self._tokens.values():
            return token.blocks[0].physical_offset
        return None

    def first_needed_offset(self, store: MessageStore) -> int:
        """The offset in the staged queue from which the next start reads blocks."""
        for token in self._tokens.values():
            return token.blocks[0].queue_offset
        return store.end_of_queue(STAGED_TOPIC, 0)

    def listing(self, sink: str | None) -> list[StagedEntry]:
        """The answer of LIST_STAGED: the tokens of one sink, or of all (None)."""
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
    """The blocks of tokens in the order of their publication."""
    return [block for token in tokens for block in token.blocks]


def _foreign(token: StagedToken, sink: str, batch_id: int) -> Refusal:
    return Refusal(
        ResponseCode.INVALID_PARAMETER,
        f"token {token.token} belongs to batch {token.batch_id} of sink {token.sink}, not to batch "
        f"{batch_id} of {sink}",
    )
