"""What the README and the manual tell a reader to type works when typed."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGES = [
    ROOT / "README.md",
    *sorted((ROOT / "docs" / "tutorial").glob("*.md")),
    *sorted((ROOT / "docs" / "how-to").glob("*.md")),
]
#: Commands that serve until a signal, take long, or need what the page tells the reader to bring;
#: each is run by a test of its own or by hand.
NOT_RUN = re.compile(r"cometmq (up|broker|name-server|demo|bench|store)\b|COMETMQ_BROKER_")
#: A page starts up to a dozen interpreters, one after the other, on a machine that may be busy.
PAGE_TIMEOUT_S = 300
COMMAND_TIMEOUT_S = 100


@dataclass(frozen=True)
class Snippet:
    """One fenced block of a page."""

    page: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.page.relative_to(ROOT)}:{self.line}"


def snippets(page: Path) -> list[Snippet]:
    """The fenced blocks of a page that name a language."""
    text = page.read_text(encoding="utf-8")
    return [
        Snippet(page, text[: match.start()].count("\n") + 1, match[1], match[2])
        for match in re.finditer(r"^```(\w+)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    ]


ALL = [snippet for page in PAGES for snippet in snippets(page)]
PYTHON = [snippet for snippet in ALL if snippet.language == "python"]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """The environment of a reader who has followed the page: `cometmq up` runs."""
    folder = tmp_path_factory.mktemp("up")
    command = [sys.executable, "-m", "cometmq", "up", "--store", str(folder / "store")]
    with subprocess.Popen(
        [*command, "--name-server-port", "0", "--broker-port", "0"],
        stdout=subprocess.PIPE,
        text=True,
    ) as server:
        assert server.stdout is not None
        ready = re.search(r"name server (\S+),", server.stdout.readline())
        assert ready is not None
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        yield {**os.environ, "NAMESRV_ADDR": ready[1], "PATH": path}
        server.terminate()
        assert server.wait(timeout=20) == 0


def test_pages_hold_snippets_to_run() -> None:
    """An empty list would make the tests below pass for nothing."""
    assert len(PYTHON) >= 3
    assert any(snippet.page.name == "README.md" for snippet in PYTHON)


def topics(pattern: str, page: Path) -> set[str]:
    """Topics that this stands before in the blocks of a page that are run."""
    return {
        topic
        for snippet in snippets(page)
        if snippet.language in ("python", "sh")
        for found in re.finditer(pattern, snippet.text)
        for topic in found.groups()
        if topic
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_page_reads_what_another_one_sends(page: Path) -> None:
    """All pages share a cluster, in any order: a page that waits for its message gets just that."""
    read = topics(r'\{"([A-Z]\w+)": "', page)
    others = {
        topic
        for other in PAGES
        if other != page
        for topic in topics(r'\bMessage\(\s*"(\w+)"|cometmq produce (\w+)', other)
    }
    assert read.isdisjoint(others), f"{page.name}: {read & others}"


@pytest.mark.processes
@pytest.mark.timeout(PAGE_TIMEOUT_S)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_works_from_top_to_bottom(page: Path, cluster: dict[str, str], tmp_path: Path) -> None:
    """Each `cometmq` line and each Python block in the page's order, warnings as errors."""
    for snippet in snippets(page):
        if snippet.language == "python":
            script = tmp_path / f"snippet_{snippet.line}.py"
            script.write_text(snippet.text, encoding="utf-8")
            check([sys.executable, "-W", "error", str(script)], snippet, cluster, tmp_path)
        elif snippet.language == "sh":
            for line in snippet.text.splitlines():
                if "cometmq " in line and "pip install" not in line and not NOT_RUN.search(line):
                    check(["sh", "-c", line], snippet, cluster, tmp_path)


def check(command: list[str], snippet: Snippet, environment: dict[str, str], folder: Path) -> None:
    """Run one command of a page; it must succeed and print what the page says it prints."""
    result = subprocess.run(
        command,
        env=environment,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=COMMAND_TIMEOUT_S,
        check=False,
    )
    assert result.returncode == 0, f"{snippet}: {command[-1]}: {result.stderr}"
    for line in re.findall(r"# prints: (.*)", snippet.text):
        assert line in result.stdout, f"{snippet}: {result.stdout}"


def two_commands() -> list[Snippet]:
    """The README's two blocks that begin with an environment of their own."""
    blocks = snippets(ROOT / "README.md")
    return [block for block in blocks if block.text.startswith("python3 -m venv .venv")]


def test_first_screen_holds_the_two_commands() -> None:
    """A stranger sees them without scrolling; they need python3, venv and pip only."""
    first, second = two_commands()
    assert second.line + second.text.count("\n") < 40
    assert first.text.rstrip().endswith("cometmq demo")
    assert second.text.rstrip().endswith("python -m pytest -n 3")
    for snippet in (first, second):
        assert "--require-hashes" in snippet.text
        assert not re.search(r"\b(make|uv|java|docker)\b", snippet.text)


def test_ci_runs_the_second_command() -> None:
    """.ci/run is the README's command, step for step."""
    _, second = two_commands()
    steps = [step.strip() for step in second.text.replace("&&", "").strip().splitlines()]
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [
        line.removeprefix("exec ")
        for line in script.splitlines()
        if line and not line.startswith(("#", "set ", "cd "))
    ]
    assert commands == steps
    assert os.access(ROOT / ".ci" / "run", os.X_OK)
