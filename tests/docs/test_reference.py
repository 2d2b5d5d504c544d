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
    pages = sorted(path.relative_to(generated) for path in generated.rglob("*.*"))
    assert len(pages) >= 3
    for page in pages:
        assert (ROOT / "docs" / page).read_text(encoding="utf-8") == (generated / page).read_text(
            encoding="utf-8"
        ), page


def anchors_of(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)
    anchors: set[str] = set()
    for title in re.findall(r"^#+ (.+)$", text, re.M):
        slug = re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-")
        anchors.add(slug)
    return anchors


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository, and a heading of it."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    missing = []
    for link, anchor in re.findall(r"\]\((?!https?:)([^)#\s]*)#?([^)\s]*)\)", text):
        target = path.parent / link if link else path
        if not target.exists():
            missing.append(link)
        elif anchor and target.suffix == ".md" and anchor not in anchors_of(target):
            missing.append(f"{link}#{anchor}")
    assert missing == []


def test_every_page_is_in_the_site() -> None:
    """mkdocs.yml names each page of docs/ once; `make site` checks the links between them."""
    names = re.findall(r": ([\w/-]+\.md)$", (ROOT / "mkdocs.yml").read_text(), re.M)
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert sorted(names) == sorted(pages | {"CONTRIBUTING.md", "CHANGELOG.md"})


def test_manual_can_be_chosen_from() -> None:
    """docs/README.md links every page of the manual."""
    text = (ROOT / "docs" / "README.md").read_text(encoding="utf-8")
    linked = set(re.findall(r"\]\(([\w/-]+\.md)\)", text))
    pages = {str(page.relative_to(ROOT / "docs")) for page in (ROOT / "docs").rglob("*.md")}
    assert pages - linked == {"README.md"}
