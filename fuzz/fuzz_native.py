"""Give hostile bytes to the native core under AddressSanitizer and UndefinedBehaviorSanitizer.

    python fuzz/fuzz_native.py --seconds 600 --seed 7

The C without Python (native/pure_c.c: frames, records, keys, hashes) and the extension module share
the time; both are built with gcc.  Of the module some calls are looked at (native/extension.py and
native/client.py), and many more are made from C (native/drive.c).  Where clang is too, libFuzzer
has a third of the time.  The first inputs come from the captured frames in tests/golden/wire and
from frames made here.

The last line has executions, seconds and the covered lines of C.  A finding prints the report of
the sanitizer and the input as hex, and the run ends with status 1.  The same seed gives the same
inputs in the same order; ``--replay HEX`` runs one input of the C without Python again.  Without
gcc nothing runs: the text says so, and the status is 0.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT / "src"), str(ROOT)]

from tests.golden.wire.captures import load_frames  # noqa: E402 - the path comes first
from tests.request_fields import LONG_NAMES, pull_fields, send_fields  # noqa: E402

from cometmq.codec.batch import encode_batch  # noqa: E402
from cometmq.codec.stored_message import encode_message  # noqa: E402
from cometmq.wire.command.command import RemotingCommand, encode_command  # noqa: E402

CORE = ROOT / "src" / "cometmq" / "native" / "c"
HERE = ROOT / "fuzz" / "native"
PURE_C = ("hash", "message_keys", "pull_header", "record", "row_properties", "send_header")
"""The files of the core that know nothing of Python."""
SANITIZE = ("-fsanitize=address,undefined", "-fno-sanitize-recover=all")
FLAGS = ("-std=gnu11", "-O1", "-g", "-fno-omit-frame-pointer", f"-I{CORE}", *SANITIZE)
TRACED = ["-fsanitize-coverage=trace-pc"]
SCARCE = ("-include", str(HERE / "scarce.h"))
INPUT_BYTES_MAX = 2048
CAPTURED_BYTES_MAX = 640
PROPERTIES = (
    "KEYS\x0142\x02UNIQ_KEY\x017F000001000100000000000000000001\x02TAGS\x01TagA\x02",
    'UNIQ_KEY\x0141\x02own\x01"quoted\\ \n\x02WAIT\x01true\x02KEYS\x01a b  c\x02',
    "UNIQ_KEY\x0141\x02DELAY\x011\x02",
    "TIMER_DELIVER_MS\x011099511627999\x02UNIQ_KEY\x0141\x02TAGS\x01TagA\x02",
    "TRAN_MSG\x01true\x02PGROUP\x01g\x02UNIQ_KEY\x0141\x02KEYS\x01a\x02",
    "MYTAGS\x01x\x02TAGS\x01y",
)

Lines = dict[str, dict[int, bool]]
"""File, then line of C: whether it was executed."""


def seed_frames() -> list[bytes]:
    """Captured sends, frames of every plain form, and pairs of frames."""
    captured = {frame.frame for frame in load_frames() if frame.code in {10, 310, 320}}
    # Some captured frames are as good as a thousand, and short ones take less time.
    frames = sorted(frame for frame in captured if len(frame) <= CAPTURED_BYTES_MAX)
    frames = frames[:: max(1, len(frames) // 60)]
    for number, text in enumerate(PROPERTIES):
        fields = send_fields("t", text, e=str(number))
        long_fields = {LONG_NAMES[name]: value for name, value in fields.items()}
        for code, named in ((310, fields), (10, long_fields)):
            for serialize_type in (0, 1):
                command = RemotingCommand.request(
                    code, named, b"body" * number, serialize_type=serialize_type
                )
                command.flag = number % 2 * 2
                frames.append(encode_command(command))
        batch = encode_batch((number, b"b" * number, item.encode()) for item in PROPERTIES)
        for serialize_type in (0, 1):
            command = RemotingCommand.request(320, fields, batch, serialize_type=serialize_type)
            frames.append(encode_command(command))
    return [
        *seed_records(),
        *seed_pulls(),
        *frames,
        *(first + last for first, last in zip(frames[-20:], frames, strict=False)),
    ]


def seed_pulls() -> list[bytes]:
    """Pulls in both encodings and in the key order of Go's clients."""
    frames = []
    for number, code in enumerate((11, 361)):
        fields = pull_fields("t", number, maxMsgBytes="262144", requestSource="1", bname="x")
        for serialize_type in (0, 1):
            command = RemotingCommand.request(code, fields, serialize_type=serialize_type)
            frames.append(encode_command(command))
        header = {"code": code, "language": "GO", "opaque": 1, "flag": 0, "extFields": fields}
        raw = json.dumps(header, separators=(",", ":")).encode()
        frames.append((len(raw) + 4).to_bytes(4, "big") + len(raw).to_bytes(4, "big") + raw)
    return frames


def seed_records() -> list[bytes]:
    """Records of both versions and of all kinds of hosts."""
    records = []
    for number, text in enumerate((*PROPERTIES, "TAGS\x01a\x02TAGS\x01\x02TAGS\x01grün")):
        topic = "T" * (1 + 130 * (number % 2))
        flag = number % 4 << 4
        hosts = {
            "born_host": bytes(20 if flag & 0x10 else 8),
            "store_host": bytes(20 if flag & 0x20 else 8),
        }
        records.append(
            encode_message(topic, b"body" * number, text.encode(), sys_flag=flag, **hosts)
        )
    return [*records, records[0] + records[1]]


def run(command: list[Any], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program and return its result, whatever it is."""
    return subprocess.run(  # noqa: S603 - compilers, and what they made
        [str(word) for word in command], capture_output=True, text=True, check=False, **options
    )


def build(command: list[Any]) -> None:
    """Run a compiler.

    Raises:
        SystemExit: the compiler failed; the text is its own.
    """
    result = run(command)
    if result.returncode:
        raise SystemExit(f"{command[0]} failed:\n{result.stderr}")


def build_with_gcc(
    folder: Path, core: list[str], others: list[str], core_flags: list[str], link: list[str]
) -> Path:
    """Compile files of the core, with a count for each line, and others; return the result."""
    folder.mkdir()
    objects = []
    for name in core:
        objects.append(folder / f"{name}.o")
        build(["gcc", *FLAGS, *SCARCE, *core_flags, "--coverage", "-c", CORE / f"{name}.c", "-o",
               objects[-1]])  # fmt: skip
    output = folder / "built"
    sources = [HERE / f"{name}.c" for name in others]
    build(["gcc", *FLAGS, *link, "--coverage", *sources, *objects, "-o", output])
    return output


def covered_lines(folder: Path) -> Lines:
    """Read the counts that the programs of a folder left."""
    lines: Lines = defaultdict(dict)
    for counts in sorted(folder.glob("*.gcda")):
        text = run(["gcov", "--json-format", "--stdout", counts.name], cwd=folder).stdout
        for file in json.loads(text)["files"]:
            path = Path(file["file"])
            if path.parent != CORE:
                continue
            for line in file["lines"]:
                number = line["line_number"]
                was_executed = lines[path.name].get(number, False)
                lines[path.name][number] = was_executed or line["count"] > 0
    return lines


def told_lines(lanes: list[Lines]) -> dict[str, str]:
    """Each file with its executed lines, all lines, and the numbers of the others."""
    together: Lines = defaultdict(dict)
    for lines in lanes:
        for name, flags in lines.items():
            for number, is_executed in flags.items():
                together[name][number] = together[name].get(number, False) or is_executed
    told = {}
    for name, flags in sorted(together.items()):
        missed = sorted(number for number, is_executed in flags.items() if not is_executed)
        told[name] = f"{len(flags) - len(missed)} of {len(flags)}" + (
            f", not {', '.join(map(str, missed))}" if missed else ""
        )
    executed = sum(sum(flags.values()) for flags in together.values())
    told["all"] = f"{executed} of {sum(map(len, together.values()))}"
    return told


class Lane:
    """The folder, the seed and the time of a run."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder = folder
        self.seed = seed
        self.corpus = folder / "corpus"
        self.corpus.mkdir()
        for number, frame in enumerate(seed_frames()):
            (self.corpus / f"{number:04}").write_bytes(frame)

    def run_libfuzzer(self, seconds: float) -> dict[str, Any] | str:
        """Run the checks of pure_c.c under libFuzzer; return what it did, or a finding."""
        program = self.folder / "libfuzzer"
        sources = [*(CORE / f"{name}.c" for name in PURE_C), HERE / "pure_c.c", HERE / "scarce.c"]
        build(["clang", *FLAGS, *SCARCE, "-fsanitize=fuzzer", "-DWITH_LIBFUZZER", *sources, "-o",
               program])  # fmt: skip
        # What it finds depends on the time, and the other parts shall repeat themselves.
        found = self.folder / "found"
        found.mkdir()
        start = time.monotonic()
        result = run(
            [program, f"-max_total_time={max(1, int(seconds))}", f"-seed={self.seed}",
             f"-max_len={INPUT_BYTES_MAX}", "-print_final_stats=1", found, self.corpus],
            cwd=self.folder,
        )  # fmt: skip
        if result.returncode:
            crashes = [path.read_bytes().hex() for path in self.folder.glob("crash-*")]
            return f"{result.stderr[-8000:]}\ninput {' '.join(crashes)}"
        (count,) = (
            line.split()[1]
            for line in result.stderr.splitlines()
            if line.startswith("stat::number_of_executed_units")
        )
        return {"executions": int(count), "seconds": round(time.monotonic() - start, 1)}

    def build_pure_c(self) -> Path:
        """Build pure_c.c with its own mutations."""
        return build_with_gcc(
            self.folder / "pure_c", list(PURE_C), ["pure_c", "mutate", "scarce"], TRACED, []
        )

    def run_pure_c(self, seconds: float) -> dict[str, Any] | str:
        """Run pure_c.c; return what it did, or a finding."""
        program = self.build_pure_c()
        return result_of(run([program, self.corpus, self.seed, seconds], cwd=self.folder))

    def run_extension(self, seconds: float) -> dict[str, Any] | str:
        """Run extension.py; return what it did, or a finding."""
        names = sorted(path.stem for path in CORE.glob("*.c"))
        flags = ["-fPIC", f"-I{sysconfig.get_path('include')}"]
        module = build_with_gcc(
            self.folder / "extension",
            names,
            ["drive", "mutate", "scarce"],
            [*flags, *TRACED],
            [*flags, "-shared"],
        )
        libraries = [
            run(["gcc", f"-print-file-name={name}"]).stdout.strip()
            for name in ("libasan.so", "libubsan.so")
        ]
        current = self.folder / "current"
        current.touch()
        result = run(
            [sys.executable, HERE / "extension.py", module, self.corpus, self.seed, seconds,
             current],
            env=os.environ
            | {
                "LD_PRELOAD": ":".join(libraries),
                "PYTHONMALLOC": "malloc",
                # An interpreter keeps memory until its end.
                "ASAN_OPTIONS": "detect_leaks=0:malloc_context_size=2",
                "UBSAN_OPTIONS": "abort_on_error=1",
                "PYTHONHASHSEED": "0",
            },
        )  # fmt: skip
        told = result_of(result)
        return told if isinstance(told, dict) else f"{told}\ninput {current.read_bytes().hex()}"


def result_of(result: subprocess.CompletedProcess[str]) -> dict[str, Any] | str:
    """Return the JSON that a program printed, or what it said when it failed."""
    if result.returncode:
        return f"status {result.returncode}\n{result.stderr[-8000:]}"
    told: dict[str, Any] = json.loads(result.stdout)
    return told


def fuzz(folder: Path, seconds: float, seed: int) -> dict[str, Any]:
    """Run each part; return what each did, and the covered lines."""
    lane = Lane(folder, seed)
    has_clang = shutil.which("clang") is not None
    parts = {"pure_c": lane.run_pure_c, "extension": lane.run_extension}
    if has_clang:
        parts = {"libfuzzer": lane.run_libfuzzer} | parts
    report: dict[str, Any] = {"seed": seed}
    if not has_clang:
        report["libfuzzer"] = "left out: it needs clang (apt-get install clang)"
    start = time.monotonic()
    for name, part in parts.items():
        told = part(seconds / len(parts))
        if isinstance(told, str):
            print(f"{name}, seed {seed}:\n{told}", file=sys.stderr)
            return report | {"finding": name, "ok": False}
        report[name] = told
    report["executions"] = sum(report[name]["executions"] for name in parts)
    report["seconds"] = round(time.monotonic() - start, 1)
    report["lines"] = told_lines([covered_lines(folder / name) for name in ("pure_c", "extension")])
    return report | {"ok": True}


def main() -> int:
    """Parse the command line and run."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--replay", metavar="HEX", help="run one input again")
    options = parser.parse_args()
    if shutil.which("gcc") is None or shutil.which("gcov") is None:
        print("skipped: make fuzz-native needs gcc with its sanitizers (apt-get install gcc)")
        return 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        if options.replay is not None:
            (folder / "input").write_bytes(bytes.fromhex(options.replay))
            result = run([Lane(folder, 0).build_pure_c(), "--replay", folder / "input"])
            print(result.stderr or "ok")
            return result.returncode
        report = fuzz(folder, options.seconds, options.seed)
    print(json.dumps(report, indent=1))
    return 0 if report["ok"] else 1


if __name__ == "__main__":
    sys.exit(main())
