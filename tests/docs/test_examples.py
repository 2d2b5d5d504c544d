"""The complete programs of docs/examples do what their pages say, also when they are killed."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import cometmq.sync
from cometmq.testing import EmbeddedCluster, threaded_cluster

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "docs" / "examples"

pytestmark = pytest.mark.processes


def program(page: str) -> str:
    """The one program of a page."""
    (text,) = re.findall(
        r"^```python\n(.*?)^```$", (EXAMPLES / page).read_text(), re.MULTILINE | re.DOTALL
    )
    return str(text)


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    # The page's half minute between two questions about a transaction would be waited for.
    with threaded_cluster({"transactionCheckInterval": 200}) as running:
        yield running


@contextmanager
def running(
    cluster: EmbeddedCluster, script: Path, *arguments: str
) -> Iterator["subprocess.Popen[str]"]:
    """A process of a program; killed at the end if it still runs."""
    environment = {**os.environ, "NAMESRV_ADDR": cluster.name_server_address}
    command = [sys.executable, "-W", "error", str(script), *arguments]
    with subprocess.Popen(
        command, cwd=script.parent, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def read_until(process: "subprocess.Popen[str]", pattern: str) -> list[str]:
    """The lines of standard output up to one that begins so."""
    assert process.stdout is not None
    lines: list[str] = []
    for line in process.stdout:
        lines.append(line.rstrip())
        if re.match(pattern, line):
            return lines
    raise AssertionError(f"no line begins with {pattern!r}: {lines}")


def test_every_example_has_its_test() -> None:
    """A page without one would be a promise that nobody checks."""
    source = Path(__file__).read_text()
    assert {page.name for page in EXAMPLES.glob("*.md")} == set(
        re.findall(r'program\("([\w-]+\.md)"\)', source)
    )


def test_an_order_is_saved_if_and_only_if_it_is_delivered(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """Killed before and after the row is written; the next process answers for it."""
    script = tmp_path / "orders.py"
    script.write_text(program("order-service.md"))
    for moment in ("begin 3", "saved 2"):
        with running(cluster, script, "100000") as process:
            read_until(process, moment)
            process.kill()
            assert process.wait(20) == -signal.SIGKILL
    with running(cluster, script, "5") as process:
        read_until(process, "placed")
        with cometmq.sync.Admin(name_server=cluster.name_server_address) as admin:
            while admin.open_transactions():  # until the checks have settled them
                time.sleep(0.05)
        with running(cluster, script, "report") as reporter:
            (line,) = read_until(reporter, r"\d+ saved")
        process.send_signal(signal.SIGINT)
        read_until(process, "ended")
    match = re.fullmatch(r"(\d+) saved, (\d+) delivered, 0 differ", line)
    assert match is not None, line
    assert int(match[1]) == int(match[2]) >= 3 + 3 + 5


def test_a_worker_that_is_stopped_does_every_job_once(
    cluster: EmbeddedCluster, tmp_path: Path
) -> None:
    """SIGTERM in the middle: what had begun ends, and a second process does the others."""
    script = tmp_path / "worker.py"
    script.write_text(program("threaded-worker.md"))
    names = [f"d{number}" for number in range(60)]
    with cometmq.sync.Producer("office", name_server=cluster.name_server_address) as producer:
        for name in names:
            body = b'{"name": "%s", "rounds": 20000}' % name.encode()
            producer.send(cometmq.sync.Message("Documents", body))
    lines: list[str] = []
    counts: list[int] = []
    for goal in (r"sealed d\d+ ", "sealed d"):
        with running(cluster, script) as process:
            if counts:
                while sum(line.startswith("sealed d") for line in lines) < len(names):
                    lines += read_until(process, goal)
            else:
                lines += read_until(process, goal)
            process.send_signal(signal.SIGTERM)
            lines += read_until(process, r"sealed \d+ documents in all")
            counts.append(int(lines.pop().split()[1]))
            assert process.wait(20) == 0
    begun = [line.split()[1] for line in lines if line.startswith("begin")]
    sealed = [line.split()[1] for line in lines if line.startswith("sealed")]
    assert sorted(begun) == sorted(sealed) == sorted(names)
    assert counts[0] < len(names) == sum(counts)
    assert len({line.split()[2] for line in lines if line.startswith("sealed")}) > 1


def test_the_notebook(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """Cell by cell in one process, as a notebook runs it."""
    text = program("notebook.md")
    cells = [cell for cell in re.split(r"^# %%", text, flags=re.MULTILINE) if cell]
    assert len(cells) == 5
    assert cells[0].startswith(" [markdown]")
    script = tmp_path / "readings.py"
    parts = [f"exec({cell.partition(chr(10))[2]!r})\nprint('cell')\n" for cell in cells[1:]]
    script.write_text("".join(parts))
    with running(cluster, script) as process:
        output, _ = process.communicate(timeout=50)
        assert process.returncode == 0
    assert output.count("cell\n") == 4
    assert "72 readings" in output
    assert re.search(r"roof +11 +21\.0", output)
    assert "{'cold': 17.08, 'hot': 18.39}" in output
