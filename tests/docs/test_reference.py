"""The manual's generated pages are what the code says, and its links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

# One process makes all pages, on a machine that may be busy.
pytestmark = pytest.mark.timeout(150)
ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


@pytest.fixture(scope="module")
def generated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The pages as a fresh process writes them: a command remembers how it was first asked."""
    folder = tmp_path_factory.mktemp("pages")
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), str(folder)]
    subprocess.run(command, check=True, timeout=120)
    return folder


def test_pages_are_in_step_with_the_code(generated: Path) -> None:
    """`make docs` after a change of options or keys."""
    pages = sorted(path.relative_to(generated) for path in generated.rglob("*.md"))
    assert len(pages) >= 3
    for page in pages:
        assert (ROOT / "docs" / page).read_text(encoding="utf-8") == (generated / page).read_text(
            encoding="utf-8"
        ), page


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
