"""The manual's generated pages are what the code says, and its links lead somewhere."""

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")])


def generator() -> ModuleType:
    """docs/generate.py as a module."""
    spec = importlib.util.spec_from_file_location("docs_generate", ROOT / "docs" / "generate.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    "name", ["reference/client.md", "reference/commands.md", "reference/configuration.md"]
)
def test_page_is_in_step_with_the_code(name: str) -> None:
    """`make docs` after a change of options or keys."""
    page = (ROOT / "docs" / name).read_text(encoding="utf-8")
    assert page == generator().PAGES[name]()


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the repository."""
    text = path.read_text(encoding="utf-8")
    assert text.startswith("# ")
    links = re.findall(r"\]\((?!https?:)([^)#\s]+)", text)
    assert [link for link in links if not (path.parent / link).exists()] == []
