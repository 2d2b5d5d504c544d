"""Closed streams, full disks and locales without UTF-8, as in real shells and containers."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cometmq.testing.cluster import threaded_cluster

C_LOCALE = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
needs_full = pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")


@pytest.fixture(scope="module")
def cluster() -> Iterator[str]:
    """A running cluster's name server."""
    with threaded_cluster() as running:
        yield running.name_server_address


def shell(
    command: str, name_server: str, *arguments: bytes, **environment: str
) -> subprocess.CompletedProcess[bytes]:
    """`sh -c COMMAND` with ``$cometmq`` as the command and ``$1`` and so on as given."""
    return subprocess.run(
        ["sh", "-c", command, "sh", *arguments],
        capture_output=True,
        timeout=60,
        check=False,
        env={
            **os.environ,
            "NAMESRV_ADDR": name_server,
            "cometmq": f"{sys.executable} -m cometmq",
            **environment,
        },
    )


@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_end_nothing(closed: str, cluster: str) -> None:
    """A socket must not get the descriptor of a closed stream: the loop would end the process."""
    done = shell(f"$cometmq produce Closed hello {closed}; echo $?", cluster)
    assert done.stdout.splitlines()[-1] == b"0", done
    assert b"Traceback" not in done.stderr + done.stdout


def test_lines_of_a_closed_stdin_are_none(cluster: str) -> None:
    """It is read as an empty file."""
    done = shell("$cometmq produce Closed --file - <&-", cluster)
    assert (done.returncode, done.stdout) == (0, b"sent 0 messages to Closed\n"), done


@needs_full
@pytest.mark.parametrize("command", ["topic list", "consume Full --from first --until-end"])
def test_output_that_cannot_be_written_is_told(command: str, cluster: str) -> None:
    """One line with the cause, and an exit code."""
    assert shell("$cometmq produce Full hello", cluster).returncode == 0
    done = shell(f"$cometmq {command} >/dev/full", cluster)
    assert done.returncode == 1
    assert done.stderr == b"cometmq: cannot write the output: No space left on device\n"


def test_arguments_are_utf8_in_every_locale(cluster: str) -> None:
    """Body, tag, key and property arrive as the bytes the shell gave."""
    text = "grüß 北".encode()
    done = shell(
        '$cometmq produce Words "$1" --tag "$2" --key "$2" --property "p=$1" --message-group "$2"',
        cluster,
        text,
        "schön".encode(),
        **C_LOCALE,
    )
    assert done.returncode == 0, done
    command = "$cometmq consume Words --from first --until-end --json"
    utf8 = json.loads(shell(command, cluster, PYTHONUTF8="1").stdout)
    assert (utf8["body"], utf8["tags"], utf8["keys"]) == ("grüß 北", "schön", ["schön"])
    assert utf8["properties"]["p"] == "grüß 北"
    assert utf8["properties"]["__SHARDINGKEY"] == "schön"
    in_c = shell(command, cluster, **C_LOCALE)
    assert in_c.stdout.isascii()
    assert json.loads(in_c.stdout) == utf8
    plain = shell("$cometmq consume Words --from first --until-end", cluster, **C_LOCALE)
    assert plain.stdout == text + b"\n"
    tagged = "$cometmq consume Words --from first --until-end --tags $1"
    assert shell(tagged, cluster, "schön".encode(), **C_LOCALE).stdout == plain.stdout


def test_a_body_may_be_any_bytes_and_text_may_not(cluster: str) -> None:
    """A body may be any bytes; other text that is not UTF-8 is refused with its option's name."""
    done = shell('$cometmq produce Bytes "$1"', cluster, b"\xff\xfe")
    assert done.returncode == 0, done
    done = shell('$cometmq produce Bytes x --tag "$1"', cluster, b"\xff\xfe")
    assert done.returncode == 2
    assert b"Invalid value for '-t' / '--tag'" in done.stderr
    assert b"is not UTF-8 (invalid start byte at byte 0)" in done.stderr
    done = shell('$cometmq topic create "$1"', cluster, b"\xff\xfe")
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr


def test_a_binary_body_does_not_print_as_eight_characters(cluster: str) -> None:
    r"""Two bytes printed as \\xff\\xfe, as text does: a pipe gets the bytes, JSON base64."""
    body, text = b"\xff\xfe", rb"\xff\xfe"
    for sent in (body, text):
        done = shell('$cometmq produce Binary "$1" --message-group one', cluster, sent)
        assert done.returncode == 0, done
    read = "$cometmq consume Binary --from first --until-end"
    assert shell(read, cluster).stdout == body + b"\n" + text + b"\n"
    lines = [json.loads(line) for line in shell(f"{read} --json", cluster).stdout.splitlines()]
    assert [(line["body"], line.get("body_base64")) for line in lines] == [
        (None, "//4="),
        (text.decode(), None),
    ]
    again = f"{read} | $cometmq produce Binary2 --file - && {read.replace('Binary', 'Binary2')}"
    copies = shell(again, cluster).stdout.splitlines()
    assert {body, text} <= set(copies)


def test_an_empty_store_path_is_refused() -> None:
    """An unset variable of a script must not mean the working directory."""
    done = shell('$cometmq up --store "$UNSET"', "127.0.0.1:9")
    assert done.returncode == 2
    assert b"storePathRootDir is empty" in done.stderr
