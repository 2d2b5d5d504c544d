"""The mixed soak in short; `make soak` runs it for ten minutes."""

import time
from pathlib import Path

import pytest
from interop.driver import mark
from interop.ledger import Ledger, body_of
from interop.peers import Unavailable, driver_command
from interop.soak import KINDS, Soak

SECONDS = 30.0


@pytest.mark.full
def test_clients_of_all_kinds_come_go_and_are_killed(tmp_path: Path) -> None:
    """Every acknowledged message reaches every group; what comes twice has its reason."""
    try:
        for client in KINDS.values():
            driver_command(client, tmp_path / "home")
    except Unavailable as error:
        pytest.skip(str(error))
    soak = Soak(tmp_path, seconds=SECONDS, seed=7, rate=100)
    report = soak.run(broker_restarts=1)
    assert report.faults == [], report.text()
    assert report.kills > 0
    assert report.kills_in_traffic == report.kills
    assert report.events["broker killed"] == 1
    assert report.acknowledged > 0
    assert min(report.delivered.values()) >= report.acknowledged


def delivery(number: str, body: bytes | None = None) -> dict[str, object]:
    """A message in the form of a driver's event."""
    shown = mark(body_of(number) if body is None else body)
    return {"properties": {"n": number}, "body": shown, "tags": "soak", "keys": number}


@pytest.mark.parametrize(
    ("story", "fault"),
    [
        ("all is well", None),
        ("lost", "g never got 1: ['b']"),
        ("changed", "g got a changed"),
        ("never sent", "g got 'z', which nobody sent"),
        ("doubled", "g got 1 twice without a reason"),
        ("doubled after a kill", None),
    ],
)
def test_the_books_find_what_is_wrong(story: str, fault: str | None) -> None:
    """The ledger reports each planted fault."""
    ledger = Ledger(["g"])
    ledger.note_sent(["a", "b", "c"])
    for number in ("a", "b"):
        ledger.note_result("p", number, {"status": "SEND_OK"})
    ledger.note_result("p", "c", {"error": {"text": "cut off"}})
    if story == "changed":
        right = body_of("a")
        ledger.note_delivery("m", "g", delivery("a", bytes([right[0] ^ 1]) + right[1:]))
    else:
        ledger.note_delivery("m", "g", delivery("a"))
    if story != "lost":
        ledger.note_delivery("m", "g", delivery("b"))
    if story == "never sent":
        ledger.note_delivery("m", "g", delivery("z"))
    if story == "doubled after a kill":
        ledger.note_disturbance(["g"], "killed", time.monotonic())
    if story.startswith("doubled"):
        ledger.note_delivery("n", "g", delivery("a"))
    faults = ledger.faults()
    if fault is None:
        assert faults == []
    else:
        assert len(faults) == 1
        assert faults[0].startswith(fault)
