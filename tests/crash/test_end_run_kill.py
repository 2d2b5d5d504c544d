"""A broker that is killed among the ends of one read, after it stored their commits together.

Between the commits and what notes them lies the named step of each; whichever it is, the commits
of the whole run are in the log, so each transaction is settled and none is delivered twice.
"""

from collections import Counter
from pathlib import Path

import pytest
from tests.crash.stepping import Life, read_queue
from tests.raw_client import RawClient

from cometmq.wire.command.codes import RequestCode

pytestmark = [pytest.mark.processes, pytest.mark.timeout(300)]

COUNT = 12
GROUP = "orders"
TOPIC = "Orders"


def life_of(path: Path, flush: str, step: str = "", hit: int = 0) -> Life:
    settings: dict[str, object] = {
        "flushDiskType": flush,
        "defaultTopicQueueNums": 1,
        "cleanFileForciblyEnable": "false",
        # Nobody is asked: what is open stays open.
        "transactionTimeOut": 600_000,
        # The first op message lies before the run, the others behind it.
        "transactionOpBatchInterval": 60_000,
        "transactionOpMsgMaxSize": 16,
    }
    return Life(path / "store", "transactions", settings, step, hit)


def halves_of(client: RawClient, count: int) -> list[dict[str, str]]:
    """Send half messages; what their ends say."""
    ends: list[dict[str, str]] = []
    for number in range(count):
        text = f"UNIQ_KEY\x01U{number:031d}\x02TRAN_MSG\x01true\x02PGROUP\x01{GROUP}\x02"
        ext = {
            "a": GROUP, "b": TOPIC, "c": "TBW102", "d": "1", "e": "0", "f": "4",
            "g": "1700000000000", "h": "0", "i": text, "j": "0", "k": "false", "m": "false",
        }  # fmt: skip
        answer = client.call(RequestCode.SEND_MESSAGE_V2, ext, b"order-%d" % number)
        assert answer.code == 0, answer.remark
        given = answer.ext_fields
        ends.append(
            {
                "producerGroup": GROUP,
                "tranStateTableOffset": given["queueOffset"],
                "commitLogOffset": str(int(given["msgId"][16:], 16)),
                "commitOrRollback": "8",
                "msgId": given["transactionId"],
            }
        )
    return ends


def bodies(client: RawClient) -> Counter[bytes]:
    return Counter(message.body for message in read_queue(client, TOPIC, 0))


@pytest.mark.parametrize("flush", ["SYNC_FLUSH", "ASYNC_FLUSH"])
@pytest.mark.parametrize(("step", "hit"), [("commit.put", 3), ("op.before", 2), ("op.put", 2)])
def test_a_kill_between_the_commits_of_a_run_and_their_answers(
    tmp_path: Path, step: str, hit: int, flush: str
) -> None:
    """All of them are delivered once, none is open, and a repeated end changes nothing."""
    life = life_of(tmp_path, flush, step, hit + (2 if step == "commit.put" else 0))
    everything = Counter(b"order-%d" % number for number in range(COUNT))
    try:
        with RawClient(life.address) as client:
            ends = halves_of(client, COUNT)
            # Two alone, so that an op message may lie in the log already.
            for one in ends[:2]:
                assert client.call(RequestCode.END_TRANSACTION, one).code == 0
            if step != "commit.put":
                rollback = {**halves_of(client, 1)[0], "commitOrRollback": "12"}
                assert client.call(RequestCode.END_TRANSACTION, rollback).code == 0
            run = [client.frame(RequestCode.END_TRANSACTION, one, b"") for one in ends[2:]]
            client.send(b"".join(run))
            life.check_killed()
    finally:
        life.close()
    life = life_of(tmp_path, flush)
    try:
        with RawClient(life.address) as client:
            # At the third commit of the run those behind it are stored as well: it was one step.
            assert bodies(client) == everything
            listed = client.call(
                RequestCode.END_TRANSACTION, {**ends[-1], "commitOrRollback": "12"}
            )
            assert listed.code == 1
            assert "ended already" in (listed.remark or "")
            for one in ends:
                assert client.call(RequestCode.END_TRANSACTION, one).code == 1
            assert bodies(client) == everything
    finally:
        life.close()
