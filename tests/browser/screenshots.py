"""Takes the manual's pictures of the pages anew: `make screenshots`.

python -m tests.browser.screenshots             # the pictures, and what they show
python -m tests.browser.screenshots --record    # runs `cometmq demo` before, for its figures
"""

from __future__ import annotations

import hashlib
import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from unittest import mock

import msgspec
from tests.browser.chromium import open_browser, open_page, screenshot, shown
from tests.browser.pages import PAGES, RECORDED, RecordedRun

if TYPE_CHECKING:
    from collections.abc import Mapping

    from cometmq.cli.demo.findings import FlightFacts, RunFacts
    from cometmq.report.page import ReportPage

__all__ = ["PICTURES", "SCHEMES", "SHOWN", "digest"]

PICTURES: Final = Path(__file__).resolve().parents[2] / "docs" / "assets" / "reports"
SHOWN: Final = PICTURES / "shown.json"
"""Page -> what its pictures show, and the digest of each picture."""
SCHEMES: Final = ("light", "dark")
_HEIGHT: Final = 1240


def digest(picture: bytes) -> str:
    """A picture's fingerprint."""
    return hashlib.sha256(picture).hexdigest()[:16]


def take_all() -> None:
    """Write each page's pictures, light and dark, and the record of what they show."""
    PICTURES.mkdir(parents=True, exist_ok=True)
    record: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        for name, build in PAGES.items():
            path = build().write(Path(folder) / f"{name}.html")
            record[name] = {"pictures": {}}
            for scheme in SCHEMES:
                open_page(browser, path, scheme)
                picture = screenshot(browser, _HEIGHT)
                (PICTURES / f"{name}-{scheme}.png").write_bytes(picture)
                record[name]["pictures"][scheme] = digest(picture)
            record[name]["shows"] = shown(browser)
    SHOWN.write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def record_demo() -> None:
    """Run the demo and keep the figures of its page."""
    from cometmq.cli.demo import page
    from cometmq.cli.main import main

    build = page.demo_page

    def keep(flights: FlightFacts, run: RunFacts, names: Mapping[str, str]) -> ReportPage:
        recorded = RecordedRun("cometmq demo", flights, run)
        RECORDED.write_bytes(msgspec.json.encode(recorded) + b"\n")
        return build(flights, run, names)

    with tempfile.TemporaryDirectory() as folder, mock.patch.object(page, "demo_page", keep):
        main(["demo", "--archive-to", folder])


if __name__ == "__main__":
    if "--record" in sys.argv[1:]:
        record_demo()
    take_all()
