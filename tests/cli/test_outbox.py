"""`cometmq outbox` on a database of SQLite."""

from pathlib import Path

import pytest
from click.testing import CliRunner
from sqlalchemy import create_engine, update
from sqlalchemy.orm import Session

from cometmq import Message
from cometmq.cli.main import root
from cometmq.patterns.outbox import Outbox
from cometmq.patterns.outbox.table import DEAD, OUTBOX
from cometmq.patterns.reliable import ReliableMessages


def test_status_dead_retry_and_undecided(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The commands show the same rows, found by option or by variable."""
    url = f"sqlite:///{tmp_path / 'shop.db'}"
    engine = create_engine(url)
    outbox = Outbox(engine)
    outbox.create()
    with Session(engine) as session:
        outbox.add(session, Message("Orders", b"1", message_group="o1"))
        outbox.add(session, Message("Orders", b"2", message_group="o2"))
        session.commit()
    with engine.begin() as connection:
        connection.execute(
            update(OUTBOX)
            .where(OUTBOX.c.order_key == "o2")
            .values(state=DEAD, tries=20, error="NoRoute: no broker")
        )
    ids = [
        ReliableMessages(outbox, lambda message: None).prepare(Message("Paid", b"")) for _ in "12"
    ]
    engine.dispose()

    def command(*words: str) -> str:
        result = CliRunner().invoke(root, ("outbox", *words), standalone_mode=False)
        if result.exception is not None:
            raise result.exception
        return result.output

    assert '"waiting":1' in command("status", "--database", url, "--json").replace(" ", "")
    monkeypatch.setenv("COMETMQ_OUTBOX", url)
    assert "cometmq_outbox_dead 1\n" in command("status", "--metrics")
    assert "NoRoute: no broker" in command("dead")
    assert command("retry", "1") == "0 rows are sent again\n"
    assert command("retry") == "1 rows are sent again\n"
    assert "no row is dead" in command("dead")
    assert command("undecided").count("Paid") == 2
    assert command("confirm", str(ids[0])) == "1 rows are confirmed\n"
    assert command("drop", *map(str, ids)) == "1 of 2 rows are dropped\n"
    assert "no row is undecided" in command("undecided")
