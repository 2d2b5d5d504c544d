"""Hooks of `mkdocs build`: pages from outside docs/, tabs, and bars in the code of tables."""

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parent.parent
#: Pages of the repository's root that the site has too.
ROOT_PAGES = ("CONTRIBUTING.md", "CHANGELOG.md")
#: A block of tabs: bold lines name the tabs, so that the source reads well where there are none.
TABS = re.compile(r"^<!-- tabs -->\n(.*?)^<!-- /tabs -->$", re.MULTILINE | re.DOTALL)

#: Code in a row of a table.
CODE = re.compile(r"`[^`\n]*`")


def on_files(files: Files, config: Any) -> Files:
    """Add the root's pages, with their links as seen from docs/."""
    for name in ROOT_PAGES:
        text = (ROOT / name).read_text(encoding="utf-8")
        files.append(File.generated(config, name, content=text.replace("](docs/", "](")))
    return files


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Point links at the root's pages of the site, turn tab blocks into tabs, unescape bars.

    GitHub needs a backslash before a bar in the code of a table; Python-Markdown would show it.
    """
    for name in ROOT_PAGES:
        markdown = markdown.replace(f"](../{name}", f"]({name}")
    markdown = re.sub(
        r"^\|.*$", lambda row: CODE.sub(_unescaped, row[0]), markdown, flags=re.MULTILINE
    )
    return TABS.sub(lambda block: _tabs(block[1]), markdown)


def _unescaped(code: re.Match[str]) -> str:
    return code[0].replace("\\|", "|")


def _tabs(block: str) -> str:
    lines = []
    for line in block.splitlines():
        title = re.fullmatch(r"\*\*(.+)\*\*", line)
        if title:
            lines += [f'=== "{title[1]}"', ""]
        else:
            lines.append(f"    {line}" if line else "")
    return "\n".join(lines)
