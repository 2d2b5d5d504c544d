"""The commands and programs of the README and the manual work when a reader types them."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
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
NOT_RUN = re.compile(
    r"cometmq (up|broker(?! (?:status|config))|name-server|controller|console|demo|bench|store)\b"
    r"|COMETMQ_BROKER_"
)
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
    """The pages have snippets, so the tests below do not pass without a check."""
    assert len(PYTHON) >= 3
    assert any(snippet.page.name == "README.md" for snippet in PYTHON)


def test_the_first_screen_shows_a_whole_program() -> None:
    """The README began with three install blocks; a reader saw no program on the first screen."""
    first = snippets(ROOT / "README.md")[0]
    assert first.language == "python"
    assert runs_until_a_signal(first)
    assert first.line + first.text.count("\n") <= 20


@pytest.mark.parametrize(
    "page",
    [*(ROOT / "docs" / "tutorial").glob("*.md"), ROOT / "docs" / "how-to" / "send-and-receive.md"],
    ids=lambda page: page.name,
)
def test_a_reader_without_asyncio_is_shown_every_program(page: Path) -> None:
    """Four pages only had tabs for asyncio and synchronous; many readers write no asyncio."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^<!-- tabs -->\n(.*?)^<!-- /tabs -->$", text, re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        assert re.findall(r"^\*\*(.+)\*\*$", block, re.MULTILINE) == ["asyncio", "synchronous"]
    outside = "".join(re.split(r"<!-- tabs -->.*?<!-- /tabs -->", text, flags=re.DOTALL))
    assert not re.search(r"async (def|with|for)", outside)


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
    read = topics(r'\{"([A-Z]\w+)": "|(?:app\.consumer|broker\.subscriber)\(\s*"(\w+)"', page)
    others = {
        topic
        for other in PAGES
        if other != page
        for topic in topics(
            r'\bMessage\(\s*"(\w+)"|cometmq produce (\w+)'
            r'|(?:app\.(?:send|producer)|broker\.publisher)\(\s*"(\w+)"',
            other,
        )
    }
    assert read.isdisjoint(others), f"{page.name}: {read & others}"


@pytest.mark.processes
@pytest.mark.timeout(PAGE_TIMEOUT_S)
@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_page_works_from_top_to_bottom(page: Path, cluster: dict[str, str], tmp_path: Path) -> None:
    """Each `cometmq` line and each Python block in the page's order, warnings as errors."""
    apps: set[str] = set()
    with ExitStack() as until_the_end:
        for snippet in snippets(page):
            if snippet.language == "python":
                script = tmp_path / f"snippet_{snippet.line}.py"
                script.write_text(snippet.text, encoding="utf-8")
                command = [sys.executable, "-W", "error", str(script)]
                if runs_until_a_signal(snippet):
                    until_the_end.enter_context(running(command, snippet, cluster, tmp_path))
                    apps.update(re.findall(r'\bApp\("([\w-]+)"', snippet.text))
                else:
                    check(command, snippet, cluster, tmp_path)
            elif snippet.language == "sh":
                for line in snippet.text.splitlines():
                    if is_run(line):
                        wait_for_groups(apps.intersection(line.split()), cluster)
                        check(["sh", "-c", line], snippet, cluster, tmp_path)


def is_run(line: str) -> bool:
    """Whether the test of its page runs this line of a shell block."""
    return "cometmq " in line and "pip install" not in line and not NOT_RUN.search(line)


def runs_until_a_signal(snippet: Snippet) -> bool:
    """Whether a program runs an App that it never stops (CometMQ's stop, FastStream's exit)."""
    return "app.run()" in snippet.text and not re.search(r"app\.(stop|exit)\(\)", snippet.text)


@contextmanager
def running(
    command: list[str], snippet: Snippet, environment: dict[str, str], folder: Path
) -> Iterator[None]:
    """A program beside the rest of its page; it prints what the page says, and ends on SIGTERM."""
    expected = set(re.findall(r"# prints: (.*)", snippet.text))
    assert expected, f"{snippet}: nothing shows that the program works"
    with subprocess.Popen(
        command,
        env={**environment, "PYTHONUNBUFFERED": "1"},
        cwd=folder,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            yield
            assert process.stdout is not None
            for line in process.stdout:
                expected.discard(line.rstrip())
                if not expected:
                    break
            assert not expected, f"{snippet}: not printed: {expected}"
            process.send_signal(signal.SIGTERM)
            assert process.wait(COMMAND_TIMEOUT_S) == 0, snippet
        finally:
            process.kill()


def wait_for_groups(names: set[str], environment: dict[str, str]) -> None:
    """Wait until a broker knows these groups: a running App joins once its topic exists."""
    deadline = time.monotonic() + COMMAND_TIMEOUT_S
    while names:
        assert time.monotonic() < deadline, f"no broker knows the groups {names}"
        listed = subprocess.run(
            ["cometmq", "group", "list"],
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        ).stdout
        names = names - set(listed.split())


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
    """The README's first screen has the two commands; they need python3, venv and pip only."""
    first, second = two_commands()
    assert second.line + second.text.count("\n") < 40
    assert first.text.rstrip().endswith("cometmq demo")
    assert second.text.rstrip().endswith("python -m pytest -n 4")
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
