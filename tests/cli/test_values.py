"""Values that a shell passes by mistake are refused with a sentence and exit code 2."""

import subprocess
import sys

import pytest
from click.testing import CliRunner

from cometmq import errors
from cometmq.cli.main import root
from cometmq.cli.terminal.exit_codes import NOT_FOUND, USAGE
from cometmq.cli.terminal.values import LONG_MAX, duration_ms, moment_ms, whole_number
from cometmq.client import Producer
from cometmq.net.blocking import BlockingChannel
from cometmq.testing.cluster import threaded_cluster

NOBODY = ("-n", "127.0.0.1:1")


def refused(*arguments: str) -> str:
    """The error text of a command that ends as wrong usage before it sends a request."""
    result = CliRunner().invoke(root, arguments)
    assert result.exit_code == USAGE, (result.output, result.exception)
    assert isinstance(result.exception, SystemExit), result.exception
    return result.output


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "Orders", "x", "--timeout"),
        ("produce", "Orders", "x", "--linger"),
        ("consume", "Orders", "--wait"),
        ("dead-letters", "redrive", "billing", "--rate"),
        ("pipeline", "replay", "archive", "--rate"),
        ("pipeline", "archive", "--every"),
        ("pipeline", "backlog", "--interval"),
    ],
)
@pytest.mark.parametrize("number", ["nan", "inf"])
def test_numbers_are_finite(arguments: tuple[str, ...], number: str) -> None:
    """nan and infinity are refused, although nan lies in every range."""
    said = refused(*arguments, number)
    assert "is not a finite number" in said or f"{number} is not in the range" in said


@pytest.mark.parametrize(
    ("arguments", "limit"),
    [(("--timeout", "1e300"), "86400"), (("--linger", "1e300"), "60000")],
)
def test_waits_have_a_limit(arguments: tuple[str, ...], limit: str) -> None:
    """A very long wait is a mistaken unit; the error names the limit."""
    assert limit in refused("produce", "Orders", "x", *arguments)


@pytest.mark.parametrize(
    "arguments",
    [
        ("produce", "", "x"),
        ("produce", "Orders", "x", "-g", ""),
        ("produce", "Orders", "x", "-k", " "),
        ("consume", ""),
        ("consume", "Orders", "--group", ""),
        ("topic", "route", ""),
        ("topic", "create", "Orders", "--broker", ""),
        ("topic", "delete", "", "-y"),
        ("group", "members", ""),
        ("group", "reset", "", "Orders", "-y"),
        ("dead-letters", "list", ""),
        ("parking", "show", "billing", ""),
        ("staged", "list", "--sink", ""),
        ("transaction", "list", "--group", ""),
        ("store", "verify", ""),
        ("up", "--listen", ""),
        ("name-server", "--listen", ""),
        ("delay-gateway", "--store", ""),
    ],
)
def test_an_empty_name_is_no_name(arguments: tuple[str, ...]) -> None:
    """An empty name, from an unset variable, is refused."""
    assert "is empty" in refused(*arguments)


def test_a_name_is_text() -> None:
    """A name that is not UTF-8 is refused."""
    assert "not UTF-8" in refused("topic", "status", "\udcff")


@pytest.mark.parametrize("time_text", ["\u00b2", "0001-01-01", "9" * 20, "9" * 5000, "-5", "", "x"])
@pytest.mark.parametrize(
    "arguments",
    [
        ("consume", "Orders", "--from"),
        ("group", "reset", "billing", "Orders", "-y", "--to-time"),
        ("produce", "Orders", "x", "--deliver-at"),
    ],
)
def test_moments(arguments: tuple[str, ...], time_text: str) -> None:
    """A text that is no time, or a time beyond the protocol's range, is refused with an example."""
    said = refused(*arguments, time_text)
    assert "ms since 1970" in said


@pytest.mark.parametrize("time_text", ["\u00b2\u00b2\u00b2\u00b2\u00b2", "--55555", "9" * 5000])
def test_moments_of_pipelines(time_text: str) -> None:
    """The same for --since and --until."""
    assert "is not a time" in refused("dead-letters", "list", "billing", "--since", time_text)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0),
        ("007", 7),
        ("0" * 5000, 0),
        (str(LONG_MAX), LONG_MAX),
        (str(LONG_MAX + 1), None),
        ("9" * 5000, None),
        ("", None),
        ("-1", None),
        ("1_0", None),
        ("\u0663", None),
    ],
)
def test_whole_numbers(text: str, number: int | None) -> None:
    """ASCII digits that a signed 64-bit field holds."""
    assert whole_number(text) == number


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [
        ("1500ms", 1500),
        ("10s", 10_000),
        ("30d", 30 * 86_400_000),
        ("7", None),
        ("\u00b2s", None),
        ("9" * 19 + "d", None),
    ],
)
def test_durations(text: str, milliseconds: int | None) -> None:
    """A number and its unit."""
    assert duration_ms(text) == milliseconds


def test_a_moment_names_its_zone() -> None:
    """An ISO time with a zone, and ms since 1970, are the same everywhere."""
    assert moment_ms("1970-01-01T01:00:00.250+01:00") == moment_ms("250") == 250


def test_a_property_is_given_once() -> None:
    """A property with two values is refused."""
    said = refused("produce", "Orders", "x", "-p", "a=1", "-p", "a=2")
    assert "'1' and '2'" in said


@pytest.mark.parametrize(
    ("option", "value", "cause"),
    [
        ("--retry-delays", "999999999999999999999d", "no duration"),
        ("--retry-delays", "400d", "366d"),
        ("--retry-exponential", "2h,5s,2", "longer than the longest"),
        ("--retry-exponential", "5s,2h,\u00b2", "FIRST,LONGEST,FACTOR"),
    ],
)
def test_retry_delays_make_sense(option: str, value: str, cause: str) -> None:
    """Delays that no broker keeps, or that shrink, are refused before they are stored."""
    assert cause in refused("group", "set", "billing", option, value)


def test_status_of_a_gateway_that_never_ran(tmp_path: object) -> None:
    """Not found, on stderr: stdout is for the JSON."""
    result = CliRunner().invoke(
        root,
        ["delay-gateway", "--store", str(tmp_path), "--status", "--json"],
        standalone_mode=False,
    )
    assert (result.return_value, result.stdout) == (NOT_FOUND, "")
    assert str(tmp_path) in result.stderr


@pytest.mark.parametrize("host", ["\udcff", "a" * 70 + ".example"])
def test_what_is_no_host_name_is_told(host: str) -> None:
    """A host name that the idna codec refuses is an error of one line."""
    result = CliRunner().invoke(root, ["topic", "list", "-n", f"{host}:9876"])
    assert isinstance(result.exception, errors.ConnectFailed), result.exception
    assert "is no host name" in str(result.exception)
    with pytest.raises(errors.ConnectFailed, match="is no host name"):
        BlockingChannel(f"{host}:9876")


def test_an_odd_secret_is_told_and_not_shown() -> None:
    """Keys are UTF-8; the message counts characters instead of printing them."""
    result = CliRunner(env={"COMETMQ_SECRET_KEY": "abc\udcff"}).invoke(
        root, ["topic", "list", "--access-key", "me", *NOBODY]
    )
    assert isinstance(result.exception, errors.ConfigError), result.exception
    assert "secret_key= is not UTF-8 at character 4" in str(result.exception)
    assert "abc" not in str(result.exception)


@pytest.mark.parametrize("linger_ms", [float("nan"), float("inf"), -1])
def test_linger_is_a_time(linger_ms: float) -> None:
    """A producer refuses at once what its first send would stumble over."""
    with pytest.raises(errors.ConfigError, match="linger_ms"):
        Producer("orders", linger_ms=linger_ms)


def test_what_lingers_at_the_end_goes_at_once() -> None:
    """At the end of a file the last batch goes at once: --linger does not delay the command."""
    with threaded_cluster({}) as cluster:
        done = subprocess.run(
            [
                *(sys.executable, "-m", "cometmq", "produce", "Lingering", "--file", "-", "--json"),
                *("--linger", "60000", "-n", cluster.name_server_address),
            ],
            input="one\ntwo\n",
            capture_output=True,
            text=True,
            timeout=30,  # half of what lingers
            check=False,
        )
    assert (done.returncode, done.stdout.count("SEND_OK")) == (0, 2), done.stderr
