"""Documents in etcd, through its JSON gateway (etcd 3.4 and newer).

Keys below ``/cometmq/<name of the cluster of controllers>/``::

    leader              address of the controller that leads, bound to its lease
    sets/<broker name>  one document

A controller leads when it has made the key ``leader``.  The revision at which it did so is its
token: every change is a transaction that compares this revision and the document's, so etcd refuses
what a deposed controller writes, whatever any clock says.  The lease only ends the leadership of a
controller that is gone.

The gateway is plain HTTP with JSON bodies: keys and values in base64, 64-bit numbers as texts,
fields that are false or 0 absent.  An answer that does not come leaves it open whether a change is
recorded; the compared revisions make a repeat harmless.

Source: etcd's API and gateway documentation, and answers of etcd 3.4.23.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from cometmq.controller.stores.base import StoredDocument
from cometmq.errors import ControllerError, DocumentChanged, LeadershipLost

__all__ = ["EtcdCall", "EtcdStore"]

log = logging.getLogger("cometmq.controller")

EtcdCall = Callable[[str, Mapping[str, Any]], Awaitable[Mapping[str, Any]]]
"""``(path below /v3, body) -> answer``; raises ControllerError without an answer."""

LEASE_S: Final = 5
"""So long after its last sign of life a leader that is gone still keeps others from leading."""
RENEW_S: Final = 1.5
CAMPAIGN_S: Final = 0.5
"""How often a controller that does not lead looks whether it can."""
MARGIN_S: Final = 1.0
"""A leader stops believing in its lease so long before etcd can end it."""


class EtcdStore:
    """The documents of one cluster of controllers.

    Args:
        call: asks etcd's gateway.
        cluster: separates several clusters of controllers in one etcd.
        close: closes what `call` uses.
    """

    is_shared = True

    def __init__(
        self, call: EtcdCall, cluster: str, close: Callable[[], Awaitable[None]] | None = None
    ) -> None:
        self._call = call
        self._close = close
        self._prefix = f"/cometmq/{cluster}/"
        self._leadership: _EtcdLeadership | None = None

    @property
    def leader_key(self) -> str:
        """The key of the leader's address."""
        return f"{self._prefix}leader"

    @property
    def sets_prefix(self) -> str:
        """What the keys of documents begin with."""
        return f"{self._prefix}sets/"

    async def open(self) -> None:
        """Nothing: an etcd that is away is waited for."""

    async def lead(self, address: str) -> _EtcdLeadership:
        """Campaign until this controller leads; etcd may be away for any time."""
        is_failing = False
        while True:
            try:
                if await self.leader() is None:
                    leadership = await self._campaign(address)
                    if leadership is not None:
                        self._leadership = leadership
                        return leadership
                is_failing = False
            except ControllerError as error:
                if not is_failing:
                    log.warning("etcd does not answer, this controller waits for it: %s", error)
                is_failing = True
            await asyncio.sleep(CAMPAIGN_S)

    async def leader(self) -> str | None:
        """Return the address that is recorded as the leader's.

        Raises:
            ControllerError: etcd does not answer.
        """
        answer = await self._call("kv/range", {"key": to_base64(self.leader_key)})
        for pair in answer.get("kvs", ()):
            return base64.b64decode(pair["value"]).decode()
        return None

    async def close(self) -> None:
        """Resign, and close the connections."""
        if self._leadership is not None:
            await self._leadership.resign()
        if self._close is not None:
            await self._close()

    async def _campaign(self, address: str) -> _EtcdLeadership | None:
        began = asyncio.get_running_loop().time()
        lease = (await self._call("lease/grant", {"TTL": LEASE_S}))["ID"]
        key = to_base64(self.leader_key)
        answer = await self._call(
            "kv/txn",
            {
                "compare": [{"key": key, "target": "CREATE", "create_revision": "0"}],
                "success": [
                    {"request_put": {"key": key, "value": to_base64(address), "lease": lease}}
                ],
            },
        )
        if not answer.get("succeeded"):
            with contextlib.suppress(ControllerError):
                await self._call("lease/revoke", {"ID": lease})
            return None
        return _EtcdLeadership(self, self._call, lease, int(answer["header"]["revision"]), began)


class _EtcdLeadership:
    """The leadership that begins with a key ``leader`` of revision `token`."""

    def __init__(
        self, store: EtcdStore, call: EtcdCall, lease: str, token: int, renewed: float
    ) -> None:
        self._store = store
        self._call = call
        self._lease = lease
        self._token = token
        self._renewed = renewed
        self._end = asyncio.Event()
        self._renewing = asyncio.create_task(self._renew())

    async def read_all(self) -> dict[str, StoredDocument]:
        """Return the documents.

        Raises:
            ControllerError: etcd does not answer.
        """
        prefix = self._store.sets_prefix
        answer = await self._call(
            "kv/range",
            # The end of a prefix's range is the prefix with its last byte one larger.
            {"key": to_base64(prefix), "range_end": to_base64(prefix[:-1] + "0")},
        )
        return {
            base64.b64decode(pair["key"]).decode().removeprefix(prefix): StoredDocument(
                base64.b64decode(pair.get("value", "")), int(pair["mod_revision"])
            )
            for pair in answer.get("kvs", ())
        }

    async def swap(self, name: str, revision: int, data: bytes | None) -> int:
        """Record a document in one transaction with both compares.

        Raises:
            DocumentChanged: the document has another revision.
            LeadershipLost: the key of the leader is not this leadership's.
            ControllerError: etcd does not answer: the change may be recorded, or not.
        """
        if self._end.is_set():
            raise LeadershipLost("this controller has not renewed its lease in time")
        leader, key = to_base64(self._store.leader_key), to_base64(self._store.sets_prefix + name)
        change: dict[str, Any] = (
            {"request_delete_range": {"key": key}}
            if data is None
            else {"request_put": {"key": key, "value": base64.b64encode(data).decode()}}
        )
        answer = await self._call(
            "kv/txn",
            {
                "compare": [
                    {"key": leader, "target": "MOD", "mod_revision": str(self._token)},
                    {"key": key, "target": "MOD", "mod_revision": str(revision)},
                ],
                "success": [change],
                "failure": [{"request_range": {"key": leader}}],
            },
        )
        if answer.get("succeeded"):
            return int(answer["header"]["revision"])
        leaders = answer["responses"][0]["response_range"].get("kvs", ())
        if [int(pair["mod_revision"]) for pair in leaders] != [self._token]:
            self._end.set()
            raise LeadershipLost("another controller leads: etcd has not taken the change")
        raise DocumentChanged(f"{name} has not revision {revision} any more")

    async def ended(self) -> None:
        """Return when the lease has ended or may have ended."""
        await self._end.wait()

    async def resign(self) -> None:
        """Revoke the lease, with which etcd removes the key of the leader."""
        self._renewing.cancel()
        if not self._end.is_set():
            self._end.set()
            with contextlib.suppress(ControllerError):
                await self._call("lease/revoke", {"ID": self._lease})

    async def _renew(self) -> None:
        """Renew the lease until it is gone, or may be gone."""
        loop = asyncio.get_running_loop()
        while True:
            until = self._renewed + LEASE_S - MARGIN_S
            await asyncio.sleep(max(0.0, min(RENEW_S, until - loop.time())))
            began = loop.time()
            try:
                async with asyncio.timeout(max(0.0, until - began)):
                    answer = await self._call("lease/keepalive", {"ID": self._lease})
            except (ControllerError, TimeoutError) as error:
                if loop.time() >= until:
                    log.warning(
                        "the lease is not renewed, this controller leads no more: %s", error
                    )
                    break
                continue
            if not int(answer.get("result", {}).get("TTL", 0)):
                log.warning("etcd has ended the lease: this controller leads no more")
                break
            self._renewed = began
        self._end.set()


def to_base64(text: str) -> str:
    """Return a key or value as the gateway wants it."""
    return base64.b64encode(text.encode()).decode()
