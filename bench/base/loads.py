"""The loads: the rows of the table, their sizes and targets.

A `Load` has everything that the worker process needs, and its target, so that the report can print
target and figure side by side.
"""

from __future__ import annotations

from typing import Final, Literal

import msgspec

__all__ = [
    "CLIENT_LOADS",
    "ECHO_LOADS",
    "FORMS",
    "KIND_LOADS",
    "RAW_LOADS",
    "SCALE_STEPS",
    "Form",
    "Kind",
    "Load",
    "Round",
    "Rounds",
    "WorkOrder",
    "custom_load",
]

Kind = Literal["send", "batch", "pull", "end-to-end", "client", "fill", "check", "message"]
Flush = Literal["async", "sync"]
Form = Literal["java", "go", "binary"]
"""JSON as Java writes it, JSON in the key order of Go's clients, RocketMQ's binary header."""
FORMS: Final[tuple[Form, ...]] = ("java", "go", "binary")


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """One row: `connections` x `window` requests of `body_bytes` bodies (x `batch_count`).

    `target` is the rate per second that the row should reach (None: none), `echo_target` the
    greatest median latency as a multiple of the echo server's.  `echo_then` is the rate of the echo
    server on the machine for which the target was set: target / `echo_then` is the share of echo
    that a figure should have on any machine. `settings` are the row's broker settings.  `unit`
    names what is counted. For kind "client" `program` names the client program, and `echo_as` the
    raw frames that ask of the echo server what the program asks of the broker. With `may_expire`
    the oldest messages of a queue may be gone when it is read back. `form` is that of the requests'
    headers. Kinds "fill" and "check" belong
    to the restart operation: one writes, the other reads back after the restart. "message" is from
    a send to being pulled, `program` the kind of message (`kind_worker`).
    """

    name: str
    kind: Kind
    connections: int = 1
    window: int = 64
    body_bytes: int = 128
    batch_count: int = 0
    topics: int = 1
    queues: int = 8
    pull_count: int = 32
    flush: Flush = "async"
    settings: dict[str, str] = {}
    target: float | None = None
    echo_target: float | None = None
    echo_then: float | None = None
    program: str = ""
    has_echo: bool = True
    echo_as: str = ""
    may_expire: bool = False
    form: Form = "java"

    @property
    def unit(self) -> str:
        """The unit that the rate counts."""
        return {"pull": "pulls", "send": "sends"}.get(self.kind, "messages")


class WorkOrder(msgspec.Struct, frozen=True, kw_only=True):
    """The order to one worker process: a load, a server, and the number and length of rounds.

    With an `echo_address` each round is preceded by one against the echo server. `verify` is
    False only against a server that stores nothing. `state_path` is where "fill" leaves the
    acknowledgements for "check"; `catch_up_s` is how long an end-to-end round waits for the last
    messages after the last send.
    """

    load: Load
    address: str
    echo_address: str = ""
    echo_pid: int = 0
    name_server: str = ""
    broker_name: str = "broker-a"
    server_pid: int = 0
    core: int | None = None
    rounds: int = 5
    seconds: float = 3.0
    warm_up_s: float = 0.3
    fill_messages: int = 200_000
    verify: bool = True
    seed: int = 1
    state_path: str = ""
    catch_up_s: float = 30.0


class Round(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of one round.

    `rate` counts `Load.unit` a second, `messages_rate` messages a second; latencies in us;
    CPU in seconds over `seconds`; memory in KiB at the end of the timed part. `acknowledged`
    and `read_back` count messages of the whole round, warm-up included; `expired` ones were
    deleted by retention before they could be read. `phases_cpu_s` are the parts of `server_cpu_s`
    in the order of their first use, where a load has phases.
    """

    rate: float
    messages_rate: float
    seconds: float
    p50_us: float | None = None
    p99_us: float | None = None
    p999_us: float | None = None
    max_us: float | None = None
    server_cpu_s: float | None = None
    server_resident_kb: int | None = None
    server_anonymous_kb: int | None = None
    generator_cpu_s: float = 0.0
    acknowledged: int = 0
    read_back: int = 0
    expired: int = 0
    phases_cpu_s: dict[str, float] = {}


class Rounds(msgspec.Struct, frozen=True, kw_only=True):
    """All rounds of an order: against the server, and before each one against the echo server."""

    rounds: list[Round]
    echo: list[Round] = []


#: The echo server's rates on the machine of the targets, the middle where a range was given.
ECHO_1X1: Final = 15_500
ECHO_1X64: Final = 300_000
ECHO_4X64: Final = 430_000

RAW_LOADS: Final = (
    Load(name="send 1x1", kind="send", window=1, echo_target=1.25),
    Load(name="send 1x64", kind="send", target=130_000, echo_then=ECHO_1X64),
    Load(name="send 4x64", kind="send", connections=4, target=160_000, echo_then=ECHO_4X64),
    Load(
        name="send 1KiB 4x16",
        kind="send",
        connections=4,
        window=16,
        body_bytes=1024,
        target=120_000,
    ),
    Load(name="send sync 4x64", kind="send", connections=4, flush="sync"),
    Load(
        name="batch100 4x4",
        kind="batch",
        connections=4,
        window=4,
        batch_count=100,
        target=400_000,
    ),
    Load(name="pull32 x1", kind="pull", connections=1, topics=2),
    Load(name="pull32 x4", kind="pull", connections=4, topics=2),
    Load(name="pull32 x16", kind="pull", connections=16, topics=2, target=28_000),
    Load(name="end-to-end 1x1", kind="end-to-end", window=1, has_echo=False),
    Load(name="end-to-end 1x64", kind="end-to-end", has_echo=False),
)

#: Raw frames that equal one client's; the echo server answers them for a client's row.
ECHO_LOADS: Final = {
    load.name: load
    for load in (
        Load(name="echo 1x1", kind="send", window=1),
        Load(name="echo 1x64", kind="send"),
        Load(name="echo batch100 1x4", kind="batch", window=4, batch_count=100),
        Load(name="echo pull32 x1", kind="pull", topics=2),
    )
}


def _client(
    name: str, program: str, target: float | None, echo_as: str, echo_then: float | None = None
) -> Load:
    return Load(
        name=name,
        kind="client",
        program=program,
        target=target,
        has_echo=False,
        echo_as=echo_as,
        echo_then=echo_then,
    )


CLIENT_LOADS: Final = (
    _client("client sync 1", "sync", 11_000, "echo 1x1", ECHO_1X1),
    _client("client async 1", "async-1", 12_000, "echo 1x1", ECHO_1X1),
    _client("client async 64", "async-64", 60_000, "echo 1x64", ECHO_1X64),
    _client("client linger", "linger", 150_000, "echo batch100 1x4"),
    _client("push async def", "push-async", 100_000, "echo pull32 x1"),
    _client("push threads", "push-threads", 60_000, "echo pull32 x1"),
    _client("push list", "push-list", 250_000, "echo pull32 x1"),
    _client("push by queue", "push-queue", None, "echo pull32 x1"),
    _client("push by group", "push-group", None, "echo pull32 x1"),
    _client("async for", "async-for", 200_000, "echo pull32 x1"),
)


#: The loads of the suite `kinds`; the others are compared with the first.
KIND_LOADS: Final = tuple(
    Load(name=f"message {kind}", kind="message", program=kind, has_echo=False)
    for kind in ("plain", "ordered", "delayed", "timed", "transactional", "filtered")
)

#: The steps of the suite `scale`, in this order.
SCALE_STEPS: Final = ("topics", "clients", "connections", "pulls")


def custom_load(
    kind: Kind,
    *,
    connections: int,
    window: int,
    body_bytes: int,
    batch_count: int,
    topics: int,
    queues: int,
    flush: Flush,
) -> Load:
    """The row that the command line's options describe."""
    body = f"{body_bytes} B"
    batch = f" batch{batch_count}" if batch_count else ""
    return Load(
        name=f"{kind}{batch} {connections}x{window} {body} {flush}",
        kind=kind,
        connections=connections,
        window=window,
        body_bytes=body_bytes,
        batch_count=batch_count,
        topics=topics,
        queues=queues,
        flush=flush,
        has_echo=kind not in {"client", "end-to-end"},
    )
