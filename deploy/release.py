"""Makes a release: wheel, source archive, bill of materials, checksums.

    python deploy/release.py dist

Writes into the folder, which must be empty or absent:

- the wheel and the source archive of this tree, built by uv;
- ``cometmq-VERSION.cdx.json``: a CycloneDX 1.5 bill of materials of what the extra ``all`` brings,
  with the versions and hashes of uv.lock;
- ``SHA256SUMS`` of these files, for ``sha256sum --check``.

The wheel holds the native core of the machine that builds it, if a C compiler is there.  Files are
the same for the same commit and compiler, since uv takes their times from SOURCE_DATE_EPOCH.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

__all__ = ["bill_of_materials", "checksums", "main"]

ROOT: Final = Path(__file__).resolve().parents[1]
Package = dict[str, Any]


def _lock() -> dict[str, list[Package]]:
    """The packages of uv.lock by name; one may have several versions, for several Pythons."""
    with (ROOT / "uv.lock").open("rb") as file:
        packages: list[Package] = tomllib.load(file)["package"]
    by_name: dict[str, list[Package]] = {}
    for package in packages:
        by_name.setdefault(package["name"], []).append(package)
    return by_name


def _needed(by_name: dict[str, list[Package]], extra: str) -> list[Package]:
    """The packages that the project and one of its extras need, sorted."""
    (project,) = by_name["cometmq"]
    waiting = [*project["dependencies"], *project["optional-dependencies"][extra]]
    chosen: dict[tuple[str, str], Package] = {}
    seen: set[tuple[str, str, tuple[str, ...]]] = set()
    while waiting:
        edge = waiting.pop()
        extras = tuple(edge.get("extra", ()))
        for package in by_name[edge["name"]]:
            version = package.get("version", "")
            if (
                edge.get("version") not in (None, version)
                or (edge["name"], version, extras) in seen
            ):
                continue
            seen.add((edge["name"], version, extras))
            if edge["name"] != "cometmq":
                chosen[edge["name"], version] = package
            waiting += package.get("dependencies", [])
            for name in extras:
                waiting += package["optional-dependencies"][name]
    return [chosen[key] for key in sorted(chosen)]


def _component(package: Package) -> dict[str, Any]:
    name, version = package["name"], package["version"]
    files = [*package.get("wheels", []), *filter(None, [package.get("sdist")])]
    return {
        "type": "library",
        "bom-ref": f"pkg:pypi/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:pypi/{name}@{version}",
        "hashes": [
            {"alg": "SHA-256", "content": file["hash"].removeprefix("sha256:")}
            for file in sorted(files, key=lambda file: str(file["hash"]))
        ],
    }


def bill_of_materials(version: str, extra: str = "all") -> dict[str, Any]:
    """What an extra brings, in CycloneDX 1.5; each package has the hashes of all its files."""
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {
            "component": {
                "type": "application",
                "bom-ref": f"pkg:pypi/cometmq@{version}",
                "name": "cometmq",
                "version": version,
                "purl": f"pkg:pypi/cometmq@{version}",
                "licenses": [{"license": {"id": "Apache-2.0"}}],
            }
        },
        "components": [_component(package) for package in _needed(_lock(), extra)],
    }


def checksums(files: Iterable[Path]) -> Iterator[str]:
    """A line of ``sha256sum`` for each file."""
    for file in sorted(files):
        yield f"{hashlib.sha256(file.read_bytes()).hexdigest()}  {file.name}"


def _version() -> str:
    with (ROOT / "pyproject.toml").open("rb") as file:
        version: str = tomllib.load(file)["project"]["version"]
    return version


def _commit_time() -> str:
    """When the commit was made, as SOURCE_DATE_EPOCH has it; 1980 without git."""
    command = ["git", "log", "-1", "--format=%ct"]
    made = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    return made.stdout.strip() or "315532800"


def main(folder: str) -> None:
    """Write a release into a folder.

    Raises:
        SystemExit: the folder has files already, or the build failed.
    """
    target = Path(folder)
    if target.exists() and any(target.iterdir()):
        sys.exit(f"{folder} is not empty; name another folder, or empty it")
    environment = {"SOURCE_DATE_EPOCH": _commit_time(), **os.environ}
    command = [sys.executable, "-m", "uv", "build", "--out-dir", str(target.absolute()), str(ROOT)]
    built = subprocess.run(command, env=environment, check=False)
    if built.returncode != 0:
        sys.exit(built.returncode)
    version = _version()
    path = target / f"cometmq-{version}.cdx.json"
    path.write_text(json.dumps(bill_of_materials(version), indent=1) + "\n", encoding="utf-8")
    files = [file for file in target.iterdir() if not file.name.startswith(".")]
    lines = "\n".join(checksums(files)) + "\n"
    (target / "SHA256SUMS").write_text(lines, encoding="utf-8")
    sys.stdout.write(lines)


if __name__ == "__main__":
    main(*(sys.argv[1:] or ["dist"]))
