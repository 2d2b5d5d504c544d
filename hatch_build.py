"""Builds the native core into the wheel, or into the tree for an editable installation.

Without a C compiler, and with ``COMETMQ_PURE=1``, the wheel is pure Python and works as well,
only slower.  ``python hatch_build.py`` builds the core into the tree and says why if it cannot.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

NATIVE: Final = Path("src", "cometmq", "native")
TARGET: Final = "_core.abi3.so"
COMPILERS: Final = ("cc", "gcc", "clang")
FLAGS: Final = (
    "-std=c11",
    "-O3",
    "-g0",
    "-fPIC",
    "-fvisibility=hidden",
    # What Debian and Fedora harden with.
    "-D_FORTIFY_SOURCE=2",
    "-fstack-protector-strong",
)
WARNINGS: Final = (
    "-Wall",
    "-Wextra",
    "-Wshadow",
    "-Wconversion",
    "-Wformat=2",
    # PyMethodDef and PyType_Slot take functions under one common type.
    "-Wno-cast-function-type",
)
"""Errors in tests/unit/native/test_compilers.py; an installation is not stopped by a warning."""
PLATFORM_FLAGS: Final = {
    "linux": ("-fstack-clash-protection", "-shared", "-Wl,-z,relro,-z,now,-z,noexecstack"),
    "darwin": ("-bundle", "-undefined", "dynamic_lookup"),
}


def compiler() -> list[str]:
    """The command of a C compiler: ``CC``, the usual ones, or the Zig of ``ziglang``; or empty."""
    chosen = os.environ.get("CC", "").split()
    if chosen:
        return chosen
    for name in COMPILERS:
        if shutil.which(name):
            return [name]
    return [sys.executable, "-m", "ziglang", "cc"] if find_spec("ziglang") else []


def build(root: Path) -> str:
    """Compile the core into the tree; return why it was not, or an empty text."""
    target = root / NATIVE / TARGET
    target.unlink(missing_ok=True)
    if os.environ.get("COMETMQ_PURE") == "1":
        return "COMETMQ_PURE=1"
    if sys.platform not in PLATFORM_FLAGS or sys.implementation.name != "cpython":
        return f"not tried on {sys.platform} with {sys.implementation.name}"
    command = compiler()
    if not command:
        return "no C compiler (cc, gcc, clang) was found"
    sources = sorted(str(path) for path in (root / NATIVE / "c").glob("*.c"))
    include = f"-I{sysconfig.get_path('include')}"
    command += [*FLAGS, include, *PLATFORM_FLAGS[sys.platform], *sources, "-o", str(target)]
    try:
        result = subprocess.run(  # noqa: S603 - the compiler of this machine
            command, capture_output=True, text=True, check=False
        )
    except OSError as error:
        return f"{command[0]} cannot be run: {error.strerror}"
    if result.returncode:
        target.unlink(missing_ok=True)
        return f"{command[0]} failed: {result.stderr.strip()[-1000:]}"
    return ""


def _hook() -> Any:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface

    class NativeCoreHook(BuildHookInterface[Any]):
        """The build hook of the wheel."""

        PLUGIN_NAME = "custom"

        def initialize(self, version: str, build_data: dict[str, Any]) -> None:
            """Compile before the files of the wheel are collected."""
            reason = build(Path(self.root))
            if reason:
                self.app.display_warning(f"without the native core: {reason}")
                return
            build_data["pure_python"] = False
            platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
            build_data["tag"] = f"cp311-abi3-{platform}"
            build_data["artifacts"].append(str(NATIVE / TARGET))

    return NativeCoreHook


def get_build_hook() -> Any:
    """What hatchling asks for."""
    return _hook()


if __name__ == "__main__":
    sys.exit(build(Path(__file__).parent) or None)
