"""The console of a cluster that checks who asks: signing in, roles, limits."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from ssl import create_default_context

import pytest
from tests.certificates import Authority
from tests.consoles import Visitor, threaded_console

import cometmq.sync
from cometmq.console.sessions import ATTEMPTS_MAX
from cometmq.console.settings import ConsoleSettings
from cometmq.testing.cluster import EmbeddedCluster, threaded_cluster

SECRET = "secret-of-root"


@pytest.fixture(scope="module")
def cluster() -> Iterator[EmbeddedCluster]:
    """A cluster with a super user, and one who may only look at one topic."""
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
            admin.put_user("ann", password="secret-of-ann")
            entry = {
                "resource": "Topic:Orders",
                "actions": ["Get", "Pub"],
                "sourceIps": [],
                "decision": "Allow",
            }
            names = {"resource": "Cluster:nameserver", "actions": ["Get"], "decision": "Allow"}
            admin.put_policies("ann", [{"policyType": "Custom", "entries": [entry, names]}])
        yield running


@pytest.fixture
def visitor(cluster: EmbeddedCluster, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitor]:
    """Somebody at a console whose own environment has the super user's keys."""
    monkeypatch.setenv("COMETMQ_ACCESS_KEY", "root")
    monkeypatch.setenv("COMETMQ_SECRET_KEY", SECRET)
    settings = ConsoleSettings(cluster.name_server_address)
    with threaded_console(settings) as address, Visitor(address) as somebody:
        yield somebody


def signed_in(visitor: Visitor, user: str, secret: str, status: int = 200) -> str:
    """The page after signing in."""
    visitor.get("/sign-in")
    return visitor.post("/sign-in", status=status, user=user, secret=secret, next="/topics")


def test_who_does_not_sign_in_sees_nothing(visitor: Visitor) -> None:
    """Every page that asks a broker leads to the form; the console's own keys help nobody."""
    for path in ("/", "/groups", "/brokers/broker-a", "/access", "/timers"):
        visitor.get(path)
        assert visitor.title == "Sign in", path
        assert visitor.note == "Brokers ask who you are."
    assert "root" not in visitor.get("/brokers")


def test_a_super_user_does_what_he_wants(visitor: Visitor) -> None:
    """He sees users without secrets, and signs out for good."""
    before = visitor.client.get("/sign-in").cookies.get("cometmq-console")
    signed_in(visitor, "root", SECRET)
    assert visitor.title == "Topics"
    assert visitor.note == "Signed in as root."
    assert visitor.client.cookies.get("cometmq-console") != before
    page = visitor.get("/access")
    assert ">ann<" in page
    assert "root (super user)" in page
    assert SECRET not in page
    assert "secret-of-ann" not in page
    query = "user=ann&resource=Topic:Orders&action=Pub"
    assert "Yes: " in visitor.get(f"/access?{query}")
    assert "No: " in visitor.get("/access?user=ann&resource=Topic:Other&action=Pub")
    visitor.get("/access?user=ann&resource=Nothing:x&action=Pub", status=400)
    visitor.get("/")
    stolen = dict(visitor.client.cookies)
    visitor.post("/sign-out")
    visitor.client.cookies.update(stolen)
    visitor.get("/")
    assert visitor.title == "Sign in"


def test_another_user_may_what_brokers_let_him(visitor: Visitor) -> None:
    """He sends to his topic; what he may not is refused with the broker's words."""
    signed_in(visitor, "ann", "secret-of-ann")
    assert "(super user)" not in visitor.page
    visitor.get("/")  # says what he may see
    assert "no permission to access" in visitor.get("/access", status=403)
    page = visitor.client.get("/topics/Orders").text
    assert "Topic Orders" in page or "no permission" in page


@pytest.mark.parametrize(
    ("user", "secret", "text"),
    [
        ("root", "guessed", "check signature failed"),
        ("nobody", SECRET, "is not found"),
        ("", "x", "Give a user and the secret."),
    ],
)
def test_wrong_keys(visitor: Visitor, user: str, secret: str, text: str) -> None:
    """The broker says what is wrong, and no session begins."""
    signed_in(visitor, user, secret, status=403 if user else 400)
    assert text in visitor.page
    visitor.get("/groups")
    assert visitor.title == "Sign in"


def test_attempts_are_limited(visitor: Visitor) -> None:
    """After five wrong ones even the right secret has to wait, for other users too."""
    for _ in range(ATTEMPTS_MAX):
        signed_in(visitor, "root", "guessed", status=403)
    signed_in(visitor, "root", SECRET, status=429)
    assert "Too many attempts" in visitor.page
    signed_in(visitor, "ann", "secret-of-ann", status=429)
    answer = visitor.client.get("/sign-in")
    (token,) = re.findall(r'name="csrf" value="([0-9a-f]+)"', answer.text)
    answer = visitor.client.post("/sign-in", data={"csrf": token, "user": "ann", "secret": "x"})
    assert 1 <= int(answer.headers["retry-after"]) <= 60


@pytest.mark.parametrize("target", ["//evil.example", "https://evil.example", "/\\evil", "x"])
def test_signing_in_leads_nowhere_else(visitor: Visitor, target: str) -> None:
    """The page to go on to is one of the console's."""
    visitor.get("/sign-in")
    (token,) = re.findall(r'name="csrf" value="([0-9a-f]+)"', visitor.page)
    fields = {"csrf": token, "user": "root", "secret": SECRET, "next": target}
    answer = visitor.client.post("/sign-in", data=fields, follow_redirects=False)
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    assert "HttpOnly" in answer.headers["set-cookie"]
    assert "SameSite=strict" in answer.headers["set-cookie"]


def test_over_https_cookies_are_secure(cluster: EmbeddedCluster, tmp_path: Path) -> None:
    """A browser sends a __Host- cookie back to this host over HTTPS only."""
    authority = Authority(tmp_path)
    cert_file, key_file = authority.sign("console")
    settings = ConsoleSettings(cluster.name_server_address, is_https=True)
    options = {"cert_file": cert_file, "key_file": key_file}
    trusted = create_default_context(cafile=authority.ca)
    with threaded_console(settings, **options) as address:
        assert address.startswith("https://")
        with Visitor(address, verify=trusted) as visitor:
            answer = visitor.client.get("/sign-in")
            assert answer.headers["set-cookie"].startswith("__Host-cometmq=")
            assert "Secure" in answer.headers["set-cookie"]
            signed_in(visitor, "root", SECRET)
            assert visitor.title == "Topics"
