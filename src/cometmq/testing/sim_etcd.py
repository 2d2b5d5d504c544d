"""An etcd in memory, as its JSON gateway answers: for controllers in tests and simulations.

One linearizable map with revisions, transactions with compares, and leases that end late but never
early.  Only what controllers ask for is here; other requests are refused, so that nothing passes
for another reason than the intended one.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from cometmq.errors import ControllerError

__all__ = ["SimEtcd"]


@dataclass(slots=True)
class _Value:
    value: str
    created: int
    changed: int
    lease: str


class SimEtcd:
    """A whole etcd cluster; `call` is what `EtcdStore` takes.

    Args:
        now_s: a monotonic clock.
        lateness_s: so much later than its time a lease ends.
    """

    def __init__(self, now_s: Callable[[], float], lateness_s: float = 0.0) -> None:
        self._now_s = now_s
        self._lateness_s = lateness_s
        self._revision = 1
        self._values: dict[str, _Value] = {}
        self._leases: dict[str, tuple[float, float]] = {}
        """Lease -> (seconds it lasts, time at which it ends)."""
        self._lease_count = 0
        self.is_away = False
        """Whether no member answers; nothing is done then."""
        self.answers_to_lose = 0
        """So many of the next transactions are done, and their answers are lost."""

    async def call(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one request.

        Raises:
            ControllerError: etcd is away, the answer is lost, or the request is not known here.
        """
        if self.is_away:
            raise ControllerError("the simulated etcd is away")
        self._end_leases()
        answers = {
            "lease/grant": self._grant,
            "lease/keepalive": self._keep_alive,
            "lease/revoke": self._revoke,
            "kv/range": self._range,
            "kv/txn": self._transaction,
        }
        if path not in answers:
            raise ControllerError(f"the simulated etcd does not know {path}")
        answer = answers[path](body)
        if path == "kv/txn" and self.answers_to_lose:
            self.answers_to_lose -= 1
            raise ControllerError("the simulated etcd's answer is lost")
        return {"header": {"revision": str(self._revision)}, **answer}

    def lose_all(self) -> None:
        """Forget everything, like an etcd that is made anew on empty disks."""
        self._values.clear()
        self._leases.clear()

    def _end_leases(self) -> None:
        now_s = self._now_s()
        for lease in [lease for lease, (_, end) in self._leases.items() if end <= now_s]:
            self._end(lease)

    def _end(self, lease: str) -> None:
        del self._leases[lease]
        keys = [key for key, value in self._values.items() if value.lease == lease]
        for key in keys:
            del self._values[key]
        self._revision += bool(keys)

    def _grant(self, body: Mapping[str, Any]) -> dict[str, Any]:
        self._lease_count += 1
        lease, ttl_s = str(self._lease_count), float(body["TTL"])
        self._leases[lease] = ttl_s, self._now_s() + ttl_s + self._lateness_s
        return {"ID": lease, "TTL": str(body["TTL"])}

    def _keep_alive(self, body: Mapping[str, Any]) -> dict[str, Any]:
        lease = body["ID"]
        if lease not in self._leases:
            return {"result": {"ID": lease}}
        ttl_s, _ = self._leases[lease]
        self._leases[lease] = ttl_s, self._now_s() + ttl_s + self._lateness_s
        return {"result": {"ID": lease, "TTL": str(int(ttl_s))}}

    def _revoke(self, body: Mapping[str, Any]) -> dict[str, Any]:
        if body["ID"] not in self._leases:
            raise ControllerError("etcd refuses lease/revoke: 404 requested lease not found")
        self._end(body["ID"])
        return {}

    def _range(self, body: Mapping[str, Any]) -> dict[str, Any]:
        first = _text(body["key"])
        last = _text(body["range_end"]) if "range_end" in body else first + "\0"
        found = [
            {
                "key": base64.b64encode(key.encode()).decode(),
                "value": value.value,
                "create_revision": str(value.created),
                "mod_revision": str(value.changed),
            }
            for key, value in sorted(self._values.items())
            if first <= key < last
        ]
        return {"kvs": found, "count": str(len(found))} if found else {}

    def _transaction(self, body: Mapping[str, Any]) -> dict[str, Any]:
        holds = all(self._holds(compare) for compare in body["compare"])
        steps = body.get("success" if holds else "failure", ())
        changes = any("request_range" not in step for step in steps)
        self._revision += changes
        answer: dict[str, Any] = {"responses": [self._step(step) for step in steps]}
        # A field that is false is absent.
        return {**answer, "succeeded": True} if holds else answer

    def _holds(self, compare: Mapping[str, Any]) -> bool:
        value = self._values.get(_text(compare["key"]))
        if compare["target"] == "CREATE":
            return int(compare["create_revision"]) == (0 if value is None else value.created)
        assert compare["target"] == "MOD"
        return int(compare["mod_revision"]) == (0 if value is None else value.changed)

    def _step(self, step: Mapping[str, Any]) -> dict[str, Any]:
        if "request_range" in step:
            return {"response_range": self._range(step["request_range"])}
        if "request_delete_range" in step:
            self._values.pop(_text(step["request_delete_range"]["key"]), None)
            return {"response_delete_range": {}}
        put = step["request_put"]
        key, lease = _text(put["key"]), put.get("lease", "")
        if lease and lease not in self._leases:
            raise ControllerError("etcd refuses kv/txn: 404 requested lease not found")
        before = self._values.get(key)
        created = self._revision if before is None else before.created
        self._values[key] = _Value(put["value"], created, self._revision, lease)
        return {"response_put": {}}


def _text(encoded: str) -> str:
    return base64.b64decode(encoded).decode()
