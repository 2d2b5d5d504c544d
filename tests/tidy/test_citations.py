"""Pages that code, tests and docs cite are in the repository, and so is the section they name."""

import re
from pathlib import Path
from typing import Final

from tests.docs.test_reference import anchors_of

ROOT = Path(__file__).resolve().parents[2]
FILES = sorted(
    path
    for folder in ("src", "tests", "fuzz", "bench", "interop", "docs")
    for path in (ROOT / folder).rglob("*")
    if path.suffix in {".py", ".md"} and "__pycache__" not in path.parts
)
INTERNALS: Final = ROOT / "docs" / "internals"
ANCHORS: Final = {page.stem: anchors_of(page) for page in INTERNALS.glob("*.md")}
TRAPS: Final = set(re.findall(r"^\| (T\d+) \|", (INTERNALS / "protocol.md").read_text(), re.M))
NAMES: Final = {path.name for path in [*ROOT.glob("*.md"), *FILES] if path.suffix == ".md"}

#: A page of the internals with a section: name, hash sign, anchor.
CITATION: Final = re.compile(r"docs/internals/(\w+)\.md(?:#([\w-]+))?")
#: A page with a section by number, which no page of ours has.
NUMBERED: Final = re.compile(r"\b\w+\.md,? \d+(?:\.\d+)*\b")
#: A page by its bare name, in a sentence or a comment.
BARE: Final = re.compile(r"(?<![\w/.{}\"'-])([a-z][\w-]*\.md)\b")
TRAP: Final = re.compile(r"\btrap (T\d+)")


def wrong_citations(text: str) -> list[str]:
    """Return the citations of a text that no page resolves."""
    wrong = [
        f"{name}.md#{anchor}"
        for name, anchor in CITATION.findall(text)
        if name not in ANCHORS or (anchor and anchor not in ANCHORS[name])
    ]
    wrong += NUMBERED.findall(text)
    wrong += [name for name in BARE.findall(text) if name not in NAMES]
    wrong += [trap for trap in TRAP.findall(text) if trap not in TRAPS]
    return wrong


def test_citations_resolve() -> None:
    """A cited page exists; a cited section is one of its headings, a trap one of its table."""
    citations = 0
    wrong = {}
    for path in FILES:
        text = path.read_text(encoding="utf-8")
        citations += len(CITATION.findall(text))
        wrong[str(path.relative_to(ROOT))] = wrong_citations(text)
    assert citations > 60
    assert {path: names for path, names in wrong.items() if names} == {}


def test_wrong_citations_are_seen() -> None:
    """The search sees a missing page, a missing heading, a wrong number and a wrong trap."""
    page = "docs/internals/"
    assert wrong_citations(f"see {page}store.md#checkpoint and trap T1") == []
    assert wrong_citations(f"see {page}store.md#nothing") == ["store.md#nothing"]
    assert wrong_citations(f"see {page}wires.md") == ["wires.md#"]
    assert wrong_citations("see wires" + ".md 3.4") == ["wires" + ".md 3.4", "wires.md"]
    assert wrong_citations("trap " + "T99") == ["T99"]
