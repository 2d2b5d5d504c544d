"""`cometmq profile`, and which cluster a command asks."""

import json
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete
from click.testing import Result
from tests.cli.invoking import Run, invoke, rows

import cometmq.sync
from cometmq.cli.main import root
from cometmq.errors import ConfigError
from cometmq.model import SubscriptionGroupConfig
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

SECRET = "secret-of-root"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster that checks who asks."""
    settings = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "initAuthenticationUser": json.dumps({"username": "root", "password": SECRET}),
    }
    with threaded_cluster(settings) as running:
        with cometmq.sync.Admin(
            name_server=running.name_server_address, access_key="root", secret_key=SECRET
        ) as admin:
            admin.create_topic("Orders", queue_count=1)
            admin.create_topic("Other", queue_count=1)
            admin.create_group(SubscriptionGroupConfig("billing"))
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the profiles are; nothing else names a cluster."""
    monkeypatch.setenv("COMETMQ_PROFILES", str(tmp_path / "deep" / "profiles.json"))
    for name in ("NAMESRV_ADDR", "COMETMQ_ACCESS_KEY", "COMETMQ_SECRET_KEY"):
        monkeypatch.delenv(name, raising=False)
    secret = tmp_path / "secret"
    secret.write_text(SECRET + "\n", encoding="utf-8")
    secret.chmod(0o600)
    return tmp_path


@pytest.fixture
def cometmq_(folder: Path) -> Run:
    """`cometmq ...` with these profiles."""

    def run(*arguments: str, code: int = 0, **variables: str) -> Result:
        return invoke(arguments, variables, code=code)

    return run


def test_life_of_profiles(cometmq_: Run, folder: Path) -> None:
    """Set, list, use, remove; the first is used at once, and only the owner reads the file."""
    assert rows(cometmq_("profile", "list", "--json")) == []
    cometmq_("profile", "set", "test", "-n", "a:9876")
    cometmq_("profile", "set", "live", "-n", "b:9876;c:9876", "--tls", "on")
    listed = {row["profile"]: row for row in rows(cometmq_("profile", "list", "--json"))}
    assert {name: row["in_use"] for name, row in listed.items()} == {"test": True, "live": False}
    assert listed["live"]["name_server"] == "b:9876;c:9876"
    cometmq_("profile", "use", "live")
    path = folder / "deep" / "profiles.json"
    assert path.stat().st_mode & 0o077 == 0
    error = cometmq_("profile", "use", "lve", code=2).exception
    assert "there are live, test" in str(error)
    cometmq_("profile", "remove", "live")
    cometmq_("profile", "remove", "live", code=2)
    assert json.loads(path.read_text())["current"] == ""
    path.write_text("[]")
    assert "is no table of profiles" in str(cometmq_("profile", "list", code=2).exception)


def test_a_profile_brings_servers_and_keys(
    cometmq_: Run, cluster: EmbeddedCluster, folder: Path
) -> None:
    """The chosen one, --profile and the variable; with -n none, and no other account's secret."""
    keys = ("--access-key", "root", "--secret-file", str(folder / "secret"))
    cometmq_("profile", "set", "own", "-n", cluster.name_server_address, *keys)
    cometmq_("profile", "set", "away", "-n", "127.0.0.1:1")
    command = ("group", "list", "--json")
    assert [row["group"] for row in rows(cometmq_(*command))] == ["billing"]
    cometmq_("profile", "use", "away")
    cometmq_(*command, code=3)
    assert rows(cometmq_("--profile", "own", *command))
    assert rows(cometmq_(*command, COMETMQ_PROFILE="own"))
    # A cluster that -n or the environment names gets no key of a profile.
    cometmq_("profile", "use", "own")
    cometmq_(*command, "-n", cluster.name_server_address, code=1)
    cometmq_(*command, NAMESRV_ADDR=cluster.name_server_address, code=1)
    assert rows(cometmq_("--profile", "own", *command, NAMESRV_ADDR="127.0.0.1:1"))
    error = cometmq_("--profile", "own", *command, "-n", "127.0.0.1:1", code=2).exception
    assert isinstance(error, click.UsageError)
    assert isinstance(cometmq_(*command, "--access-key", "ann", code=2).exception, ConfigError)


def test_a_secret_that_others_may_read_is_refused(cometmq_: Run, folder: Path) -> None:
    """The error says what to do."""
    (folder / "secret").chmod(0o644)
    arguments = ("-n", "a:1", "--access-key", "root", "--secret-file", str(folder / "secret"))
    error = cometmq_("profile", "set", "own", *arguments, code=2).exception
    assert "chmod 600" in str(error)
    (folder / "secret").unlink()
    assert "cannot be read" in str(cometmq_("profile", "set", "own", *arguments, code=2).exception)


@pytest.mark.parametrize(
    ("words", "incomplete", "names"),
    [
        (["topic", "status"], "", ["Orders", "Other"]),
        (["topic", "status"], "Or", ["Orders"]),
        (["group", "lag"], "b", ["billing"]),
        (["group", "reset", "billing"], "Ot", ["Other"]),
        (["why", "ID", "--group"], "", ["billing"]),
        (["consume"], "Ord", ["Orders"]),
        (["dead-letters", "list"], "", ["billing"]),
        (["parking", "list"], "", ["billing"]),
        (["topic", "create", "--cluster"], "", []),
    ],
)
def test_names_are_completed(
    cometmq_: Run,
    cluster: EmbeddedCluster,
    folder: Path,
    words: list[str],
    incomplete: str,
    names: list[str],
) -> None:
    """Topics and groups of the cluster that the profile names."""
    keys = ("--access-key", "root", "--secret-file", str(folder / "secret"))
    cometmq_("profile", "set", "own", "-n", cluster.name_server_address, *keys)
    shell = ShellComplete(root, {}, "cometmq", "_COMETMQ_COMPLETE")
    assert [item.value for item in shell.get_completions(words, incomplete)] == names


def test_nothing_is_completed_where_nobody_answers(cometmq_: Run) -> None:
    """The shell does not hang, and prints no error."""
    cometmq_("profile", "set", "away", "-n", "127.0.0.1:1")
    shell = ShellComplete(root, {}, "cometmq", "_COMETMQ_COMPLETE")
    assert shell.get_completions(["topic", "status"], "") == []
