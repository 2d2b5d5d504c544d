"""The console's pages over real sockets, for a real cluster without access control."""

from __future__ import annotations

import re
import threading
from collections.abc import Iterator
from html import unescape
from typing import Any
from urllib.parse import quote

import pytest
from tests.consoles import Visitor, threaded_console

import cometmq
import cometmq.sync
from cometmq.console.app import FORM_BYTES_MAX, FORM_FIELDS_MAX
from cometmq.console.routes import ENDPOINTS
from cometmq.console.settings import ConsoleSettings
from cometmq.console.visit import ROWS_PER_PAGE
from cometmq.model import SubscriptionGroupConfig
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

EVIL = "<script>alert('x')</script>\"&"
COUNT = 6


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """One cluster for all tests here; each uses topics of its own."""
    with threaded_cluster({}) as running:
        yield running


@pytest.fixture(scope="module")
def address(cluster: EmbeddedCluster) -> Iterator[str]:
    """A console of it."""
    hosts = frozenset({"127.0.0.1"})
    with threaded_console(ConsoleSettings(cluster.name_server_address, hosts=hosts)) as console:
        yield console


@pytest.fixture
def visitor(address: str) -> Iterator[Visitor]:
    """Somebody who looks at it."""
    with Visitor(address) as somebody:
        yield somebody


@pytest.fixture
def admin(cluster: EmbeddedCluster) -> Iterator[cometmq.sync.Admin]:
    """What the pages should say."""
    with cometmq.sync.Admin(name_server=cluster.name_server_address) as client:
        yield client


@pytest.fixture(scope="module")
def dead(cluster: EmbeddedCluster) -> str:
    """A group for which the messages of Letters died."""
    name_server = cluster.name_server_address
    with cometmq.sync.Producer("p", name_server=name_server) as producer:
        for number in range(COUNT):
            reason = {"reason": f"no account {number}"}
            message = cometmq.Message("Letters", b"dear", keys=f"k{number}", properties=reason)
            producer.send(message)
    died = threading.Semaphore(0)

    def handle(message: cometmq.ReceivedMessage) -> cometmq.DeadLetter:
        died.release()
        return cometmq.DeadLetter()

    with cometmq.sync.PushConsumer(
        "undertaker", {"Letters": "*"}, handle, name_server=name_server, consume_from="first"
    ):
        for _ in range(COUNT):
            assert died.acquire(timeout=30)
    # A handler's answer is at the broker when its consumer has ended.
    return "undertaker"


def sent(cluster: EmbeddedCluster, topic: str, *bodies: bytes, **options: Any) -> list[str]:
    """The ids of messages in a topic."""
    with cometmq.sync.Producer("p", name_server=cluster.name_server_address) as producer:
        return [
            producer.send(cometmq.Message(topic, body, **options)).message_id for body in bodies
        ]


def cells(page: str, table_number: int = 0) -> list[list[str]]:
    """The texts of a table's rows."""
    body = re.findall(r"<tbody>(.*?)</tbody>", page, re.S)[table_number]
    return [
        [
            unescape(re.sub(r"<[^>]*>", "", cell)).strip()
            for cell in re.findall(r"<td[^>]*>(.*?)</td>", row, re.S)
        ]
        for row in re.findall(r"<tr>(.*?)</tr>", body, re.S)
    ]


def test_every_page_answers(visitor: Visitor, cluster: EmbeddedCluster) -> None:
    """Without arguments too: with the page, or with a sentence that says what is missing."""
    cluster_paths = {"{broker}": "broker-a", "{topic}": "TBW102", "{group}": "nobody"}
    for endpoint in ENDPOINTS:
        if endpoint.method != "GET":
            continue
        path = endpoint.path
        for name, value in cluster_paths.items():
            path = path.replace(name, value)
        answer = visitor.client.get(path)
        assert answer.status_code in (200, 400, 404), (path, answer.text)
        assert "<h1>" in answer.text, path
        assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert visitor.client.get("/nothing").status_code == 404
    assert visitor.client.get("/static/style.css").status_code == 200
    assert visitor.client.get("/static/../app.py").status_code == 404
    assert visitor.client.put("/topics").status_code == 405


def test_overview(visitor: Visitor, cluster: EmbeddedCluster) -> None:
    """The broker, and links that lead on."""
    page = visitor.get("/")
    assert cells(page)[0][:3] == ["broker-a", "0", cluster.broker_address]
    assert cells(page)[0][-1] == "serving"
    visitor.get("/brokers/broker-a")
    assert any(row[0] == "brokerName" and row[1] == "broker-a" for row in cells(visitor.page, 1))
    visitor.get("/brokers/broker-x", status=400)
    assert "no broker is called broker-x" in visitor.page


def test_lists_come_in_pages(visitor: Visitor, admin: cometmq.sync.Admin) -> None:
    """Fifty rows a page, chosen by a part of the name; a number beyond the end is the last."""
    for number in range(ROWS_PER_PAGE + 2):
        admin.create_topic(f"Paged{number:05}", queue_count=1)
    assert len(cells(visitor.get("/topics?q=paged"))) == ROWS_PER_PAGE
    assert "page 1 of 2, 52 rows" in visitor.page
    (following,) = re.findall(r'rel="next" href="([^"]+)"', visitor.page)
    assert [row[0] for row in cells(visitor.get(unescape(following)))] == [
        "Paged00050",
        "Paged00051",
    ]
    assert len(cells(visitor.get("/topics?q=PAGED&page=9"))) == 2
    visitor.get("/topics?page=x", status=400)
    assert "Nothing" in visitor.get("/groups?q=nosuch") or "No such group" in visitor.page
    for number in range(ROWS_PER_PAGE + 1):
        admin.create_group(SubscriptionGroupConfig(f"paged-group{number:05}"))
    assert len(cells(visitor.get("/groups?q=paged-group"))) == ROWS_PER_PAGE
    assert cells(visitor.get("/groups?q=paged-group&page=2"))[0][:3] == [
        "paged-group00050",
        "0",
        "0",
    ]


def test_a_test_message(visitor: Visitor, admin: cometmq.sync.Admin) -> None:
    """It is stored with all that the form has, found again, and shown as it is."""
    admin.create_topic("Tried", queue_count=1)
    visitor.get("/topics/Tried")
    visitor.post(
        "/topics/Tried/send",
        body='{"name": "' + "grüße" + '"}\r\n',
        tags="new",
        keys="k1 k2",
        message_group="g",
        properties="colour = red\n",
    )
    (stored,) = admin.query_message("Tried", "k2")
    assert stored.body == '{"name": "grüße"}\n'.encode()
    assert (stored.tags, stored.properties["colour"]) == ("new", "red")
    assert visitor.note == f"Sent {stored.message_id} to broker-a:0, offset 0."
    visitor.get("/topics/Tried")
    assert visitor.note == ""
    visitor.post("/topics/Tried/send", status=400, body="x", properties="colour")
    assert "has no &#39;=&#39;" in visitor.page
    visitor.get("/topics/Tried")
    visitor.post("/topics/NoSuch/send", status=404, body="x")


def test_search_and_views(visitor: Visitor, cluster: EmbeddedCluster) -> None:
    """By id, key, time and offset; text, JSON and hexadecimal."""
    first, second = sent(cluster, "Searched", b'{"id": 7}', b"\xff\x00", keys="order-1")
    for query in (f"id={first}", "key=order-1", "from=2020-01-01", "queue=broker-a:0"):
        visitor.get(f"/messages?topic=Searched&{query}")
    assert len(cells(visitor.get("/messages?topic=Searched&key=order-1"))) == 2
    assert len(cells(visitor.get("/messages?topic=Searched"))) == 2
    assert "is so" in visitor.get("/messages?topic=Searched&to=2020-01-01")
    assert "is so" in visitor.get("/messages?topic=Searched&key=order-2")
    visitor.get("/messages?topic=Searched&from=2021-01-01&to=2020-01-01", status=400)
    visitor.get("/messages?topic=Searched&queue=broker-a:99", status=400)
    visitor.get("/messages?topic=NoSuch&key=x", status=404)
    visitor.get(f"/messages?topic=Searched&id={first}")
    assert visitor.title == f"Message {first}"
    assert "&#34;id&#34;: 7" in visitor.page
    assert "7b 22 69 64" in visitor.get(f"/message?topic=Searched&id={first}&body=hex")
    assert "00000000  ff 00" in visitor.get(f"/message?topic=Searched&id={second}")
    visitor.get("/message?topic=Searched&id=nosuch", status=404)


def test_the_timeline_of_a_message(visitor: Visitor, cluster: EmbeddedCluster) -> None:
    """Sent and handled, from the traces of both clients."""
    name_server = cluster.name_server_address
    handled = threading.Event()
    with (
        cometmq.sync.PushConsumer(
            "traced-group",
            {"Traced": "*"},
            lambda message: handled.set(),
            name_server=name_server,
            consume_from="first",
            trace=True,
        ),
        cometmq.sync.Producer("p", name_server=name_server, trace=True) as producer,
    ):
        message_id = producer.send(cometmq.Message("Traced", b"x")).message_id
        assert handled.wait(60)
    # Both have written their traces when they have ended.
    rows = cells(visitor.get(f"/message?topic=Traced&id={message_id}"), 2)
    assert sorted(row[1] for row in rows) == ["handled", "handling", "sent"]
    (other,) = sent(cluster, "Untraced", b"x")
    assert "No trace: " in visitor.get(f"/message?topic=Untraced&id={other}")


def test_a_group_its_members_and_the_message_that_waits(
    visitor: Visitor, cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """Lag by queue, members, stacks, the cause, and why a message is where it is."""
    name_server = cluster.name_server_address
    sent(cluster, "Work", b"0", b"1", b"2")
    busy, done = threading.Event(), threading.Event()

    def handle(message: cometmq.ReceivedMessage) -> None:
        busy.set()
        done.wait(60)

    with cometmq.sync.PushConsumer(
        "workers", {"Work": "*"}, handle, name_server=name_server, consume_from="first"
    ):
        assert busy.wait(30)
        try:
            (client_id,) = admin.consumer_list("workers")
            page = visitor.get("/groups/workers")
            assert client_id in unescape(page)
            path = f"/client?group=workers&id={quote(client_id, safe='')}"
            assert [row[0] for row in cells(visitor.get(path)) if row[0] == "Work"]
            assert (
                "done.wait" in unescape(visitor.get(f"{path}&stacks=1")) or "wait" in visitor.page
            )
            assert client_id in unescape(visitor.get("/clients?q=workers"))
            visitor.get("/messages?topic=Work")
            message_id = cells(visitor.page)[0][0]
            visitor.get(f"/why?id={message_id}&group=workers&topic=Work")
            assert visitor.title.startswith(f"{message_id} for workers: ")
            visitor.get(f"/why?id={message_id}&group=nosuch&topic=Work", status=404)
        finally:
            done.set()
    visitor.get("/client?group=workers&id=nobody", status=404)


def test_moving_a_group_asks_first(
    visitor: Visitor, cluster: EmbeddedCluster, admin: cometmq.sync.Admin
) -> None:
    """The preview counts and moves nothing; the confirmed form moves."""
    admin.create_topic("Moved", queue_count=2)
    sent(cluster, "Moved", *[b"x"] * 8)
    admin.create_group(SubscriptionGroupConfig("movers"))
    queues = sorted(admin.topic_offsets("Moved"))
    admin.commit_offsets("movers", dict.fromkeys(queues, 0))
    path = "/groups/movers/reset"

    def lags() -> list[int]:
        return [at.lag for _, at in sorted(admin.group_offsets("movers", ["Moved"]).items())]

    assert sum(lags()) == 8
    visitor.get("/groups/movers")
    visitor.post(path, topic="Moved", to="latest")
    assert "2 queues, 8 messages skipped, 0 repeated" in visitor.page
    assert sum(lags()) == 8
    visitor.confirm()
    assert visitor.note == "Moved movers in Moved: 2 queues, 8 messages skipped, 0 repeated."
    assert sum(lags()) == 0
    visitor.post(path, topic="Moved", to="offset", queue="broker-a:1", queue_offset="1")
    visitor.confirm()
    assert sum(lags()) == lags()[1] > 0
    visitor.get("/groups/movers")
    visitor.post(path, topic="Moved", to="time", time="2020-01-01T00:00")
    assert "messages skipped" in visitor.page
    visitor.confirm()
    assert sum(lags()) == 8
    visitor.get("/groups/movers")
    for fields in ({}, {"to": "offset", "queue_offset": "1"}, {"to": "time", "time": "soon"}):
        visitor.get("/groups/movers")
        visitor.post(path, status=400, topic="Moved", **fields)
    visitor.get("/groups/movers")
    visitor.post(path, status=404, topic="NoSuch", to="latest")


def test_dead_letters_go_again_when_confirmed(
    visitor: Visitor, dead: str, admin: cometmq.sync.Admin
) -> None:
    """All or the ticked ones, with a preview; what was sent before is left out."""
    assert [dead, str(COUNT)] in cells(visitor.get("/dead-letters"))
    listed = cells(visitor.get(f"/dead-letters/{dead}"))
    assert len(listed) == COUNT
    assert {row[2] for row in listed} == {"Letters"}
    assert len(cells(visitor.get(f"/dead-letters/{dead}?reason=account 3"))) == 1
    visitor.get(f"/dead-letters/{dead}")
    path = f"/dead-letters/{dead}/redrive"
    visitor.post(path, status=400)
    visitor.get(f"/dead-letters/{dead}")
    visitor.post(path, id=[listed[0][-1], listed[1][-1]])
    assert visitor.title == f"Send 2 messages to {dead} again?"
    visitor.confirm()
    assert visitor.note == "Sent 2 again; 0 were sent before."
    visitor.post(path, all="yes")
    assert "2 were sent before" in visitor.page
    visitor.confirm()
    assert visitor.note == f"Sent {COUNT - 2} again; 2 were sent before."
    visitor.get("/dead-letters/nosuch", status=404)


def test_timers_transactions_parked_and_access(visitor: Visitor, cluster: EmbeddedCluster) -> None:
    """What waits is counted; without access control its page says so."""
    sent(cluster, "Later", b"x", delay_ms=3_600_000)
    sent(cluster, "Later", b"x", delay_level=18)
    page = visitor.get("/timers")
    assert ["broker-a", "Later", "1"] in cells(page)
    assert any(row[1] == "18" and row[2] == "7,200" for row in cells(page, 1))
    assert "No transaction is open" in visitor.get("/transactions")
    assert "gave up" in visitor.get("/transactions?given-up=1")
    assert "Nothing is parked" in visitor.get("/parked")
    assert "do not check who asks" in visitor.get("/access")


def test_what_messages_say_is_never_markup(visitor: Visitor, cluster: EmbeddedCluster) -> None:
    """Bodies, properties, keys and what the address has are escaped everywhere."""
    (message_id,) = sent(
        cluster, "Evil", EVIL.encode(), keys="<b>", tags="<i>", properties={"p<u>": EVIL}
    )
    pages = [
        "/messages?topic=Evil",
        f"/message?topic=Evil&id={message_id}",
        f"/messages?topic={quote(EVIL)}&key={quote(EVIL)}",
        f"/topics?q={quote(EVIL)}",
        f"/groups/{quote(EVIL, safe='')}",
        f"/brokers/{quote(EVIL, safe='')}",
        f"/sign-in?next={quote(EVIL)}",
        f"/clients?group={quote(EVIL)}",
    ]
    for path in pages:
        text = visitor.client.get(path).text
        assert not re.search(r"<(script>|b>|i>|u>)", text), path
        assert "alert(" not in text or "alert(&#39;x&#39;)" in text, path


def test_forms_of_others_are_refused(visitor: Visitor, admin: cometmq.sync.Admin) -> None:
    """No token, another visitor's token, another site, another name of the console."""
    admin.create_topic("Guarded", queue_count=1)
    visitor.get("/topics/Guarded")
    path, client = "/topics/Guarded/send", visitor.client
    (token,) = set(re.findall(r'name="csrf" value="([0-9a-f]+)"', visitor.page))
    form = {"csrf": token, "body": "x"}
    assert client.post(path, data={"body": "x"}).status_code == 403
    assert client.post(path, data=form | {"csrf": "ü"}).status_code == 403
    for headers in (
        {"origin": "http://evil.example"},
        {"origin": "null"},
        {"sec-fetch-site": "cross-site"},
        {"sec-fetch-site": "same-site"},
    ):
        assert client.post(path, data=form, headers=headers).status_code == 403, headers
    assert client.get("/", headers={"host": "evil.example"}).status_code == 421
    with Visitor(str(client.base_url)) as other:
        other.get("/topics/Guarded")
        assert other.client.post(path, data=form).status_code == 403
    sum_of = sum(bounds.count for bounds in admin.topic_offsets("Guarded").values())
    assert sum_of == 0
    assert client.post(path, data=form).status_code == 200
    assert (
        client.post(path, data={f"f{n}": "" for n in range(FORM_FIELDS_MAX + 1)}).status_code == 413
    )
    assert client.post(path, content=b"x" * (FORM_BYTES_MAX + 1)).status_code == 413


def test_a_note_cannot_be_made_up(visitor: Visitor) -> None:
    """A cookie that the console did not seal shows nothing."""
    visitor.client.cookies.set("cometmq-note", "aGFoYQ==.00")
    visitor.get("/topics")
    assert visitor.note == ""
    answer = visitor.client.get("/topics", headers=[(b"cookie", "cometmq-note=ü.ü".encode())])
    assert 'class="note"' not in answer.text


def test_signing_in_has_no_use_here(visitor: Visitor) -> None:
    """Brokers that check nobody would take any keys; the page says so."""
    visitor.get("/sign-in")
    visitor.post("/sign-in", status=400, user="root", secret="x")
    assert "authenticationEnabled=false" in visitor.page


def test_a_read_only_console_changes_nothing(cluster: EmbeddedCluster) -> None:
    """Pages have no forms that change something, and such requests are refused."""
    settings = ConsoleSettings(cluster.name_server_address, is_read_only=True)
    with threaded_console(settings) as address, Visitor(address) as visitor:
        assert 'method="post"' not in visitor.get("/topics/TBW102")
        visitor.get("/sign-in")
        visitor.post("/topics/TBW102/send", status=403, body="x")
        assert "--read-only" in visitor.page


def test_a_cluster_that_is_away(address: str) -> None:
    """The page says what does not answer; the console goes on."""
    with (
        threaded_console(ConsoleSettings("127.0.0.1:1", timeout_ms=500)) as console,
        Visitor(console) as visitor,
    ):
        visitor.get("/", status=502)
        assert "no connection to 127.0.0.1:1" in visitor.page
        visitor.get("/timers", status=502)
