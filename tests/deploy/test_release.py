"""A release: the bill of materials is the lock's, the checksums are those of the files."""

import hashlib
import importlib.util
import subprocess
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def release() -> ModuleType:
    """deploy/release.py, which is no package."""
    spec = importlib.util.spec_from_file_location("release", ROOT / "deploy" / "release.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_bill_has_what_the_extra_brings(release: ModuleType) -> None:
    """Each package with its version and hashes, those of the client first of all, none twice."""
    bill = release.bill_of_materials("0.1.0")
    names = [component["name"] for component in bill["components"]]
    assert {"msgspec", "numpy", "starlette", "jinja2", "pyspark", "click"} <= set(names)
    assert "pytest" not in names
    assert "cometmq" not in names
    references = [component["bom-ref"] for component in bill["components"]]
    assert len(references) == len(set(references))
    assert all(component["hashes"] for component in bill["components"])
    small = release.bill_of_materials("0.1.0", "console")["components"]
    assert {"anyio", "h11", "jinja2", "markupsafe", "starlette", "uvicorn"} <= {
        component["name"] for component in small
    }
    assert "pyspark" not in {component["name"] for component in small}
    with (ROOT / "uv.lock").open("rb") as file:
        locked = {
            (package["name"], package.get("version")): package
            for package in tomllib.load(file)["package"]
        }
    for component in bill["components"]:
        package = locked[component["name"], component["version"]]
        hashes = {file["hash"].removeprefix("sha256:") for file in package.get("wheels", [])}
        assert hashes <= {entry["content"] for entry in component["hashes"]}


def test_checksums(release: ModuleType, tmp_path: Path) -> None:
    """Lines of sha256sum, sorted by name."""
    (tmp_path / "b").write_bytes(b"b")
    (tmp_path / "a").write_bytes(b"a")
    lines = list(release.checksums(tmp_path.iterdir()))
    assert lines == [
        f"{hashlib.sha256(name).hexdigest()}  {name.decode()}" for name in (b"a", b"b")
    ]


def test_a_release_is_built(tmp_path: Path) -> None:
    """Wheel, archive, bill and checksums, which sha256sum confirms; a used folder is refused."""
    command = [sys.executable, str(ROOT / "deploy" / "release.py"), str(tmp_path / "dist")]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    files = {path.name for path in (tmp_path / "dist").iterdir()} - {".gitignore"}
    endings = {".".join(name.split(".")[-2:]) for name in files if name != "SHA256SUMS"}
    assert endings == {"tar.gz", "cdx.json"} | {n for n in endings if n.endswith("whl")}
    assert any(name.endswith(".whl") for name in files)
    checked = subprocess.run(
        ["sha256sum", "--check", "SHA256SUMS"],
        cwd=tmp_path / "dist",
        check=True,
        capture_output=True,
    )
    assert checked.stdout.count(b": OK") == len(files) - 1
    again = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert "is not empty" in again.stderr
