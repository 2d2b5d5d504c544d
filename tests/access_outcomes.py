"""What every request code of every server answers to whom: the table of docs/reference/access.md.

`python -m tests.access_outcomes` asks real servers and writes the page; a test compares it.
"""

from __future__ import annotations

import asyncio
import json
import re
import socket
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from cometmq.broker.base.needs import broker_needs
from cometmq.controller.config import load_controller_config
from cometmq.controller.needs import CLUSTER as CONTROLLER_CLUSTER
from cometmq.controller.needs import CONTROLLER_NEEDS
from cometmq.controller.opening import open_controller
from cometmq.errors import CometError
from cometmq.namesrv.needs import CLUSTER as NAME_SERVER_CLUSTER
from cometmq.namesrv.needs import NAME_SERVER_NEEDS
from cometmq.net.env import system_environment
from cometmq.server.access.needs import Needs
from cometmq.store.base.disk import RealDisk
from cometmq.sync import Admin
from cometmq.testing.cluster import threaded_cluster
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.command import RemotingCommand, encode_command
from cometmq.wire.extensions.adopt import ADOPT, DESCRIBE_REPLICA
from cometmq.wire.extensions.backlog import BacklogCode
from cometmq.wire.extensions.bulk_pull import BulkPullCode
from cometmq.wire.extensions.log_range import LogRangeCode
from cometmq.wire.extensions.staging import StagingCode
from cometmq.wire.extensions.step_down import STEP_DOWN
from cometmq.wire.extensions.why import WhyCode
from cometmq.wire.frame.acl import Credentials
from cometmq.wire.frame.framing import FrameReader

PAGE: Final = Path(__file__).resolve().parents[1] / "docs" / "reference" / "access.md"
ROOT: Final = Credentials("root", "secret-of-root")
CALLERS: Final[Mapping[str, Credentials | None]] = {
    "unsigned": None,
    "unknown user": Credentials("eve", "secret-of-eve"),
    "wrong secret": Credentials("root", "guessed"),
    "user without policies": Credentials("weak", "secret-of-weak"),
    "consumer": Credentials("reader", "secret-of-reader"),
    "producer": Credentials("writer", "secret-of-writer"),
}
_SETTINGS: Final[dict[str, Any]] = {
    "authenticationEnabled": True,
    "authorizationEnabled": True,
    "initAuthenticationUser": json.dumps({"username": "root", "password": ROOT.secret_key}),
}
_FIELDS: Final = {
    **dict.fromkeys(("topic", "b"), "Orders"),
    **dict.fromkeys(("consumerGroup", "group", "groupName"), "billing"),
    "tranStateTableOffset": "0",
    "commitLogOffset": "0",
    "commitOrRollback": "8",
    "producerGroup": "p",
}
_BODY: Final = json.dumps(
    {
        "group": "billing",
        "consumerGroup": "billing",
        "groupName": "billing",
        "mqSet": [{"topic": "Orders"}],
        "consumerDataSet": [{"groupName": "billing", "subscriptionDataSet": [{"topic": "Orders"}]}],
        "topicConfigList": [{"topicName": "Orders"}],
        "groupConfigList": [{"groupName": "billing"}],
    }
).encode()
_OWN_NAMES: Final = {
    int(code): code.name
    for kind in (BacklogCode, BulkPullCode, LogRangeCode, StagingCode, WhyCode)
    for code in kind
} | {STEP_DOWN: "STEP_DOWN", ADOPT: "ADOPT", DESCRIBE_REPLICA: "DESCRIBE_REPLICA"}
_REFUSED: Final = 16
_MISSING: Final = re.compile(r"no permission to access (\S+) from")


def _request(code: int) -> RemotingCommand:
    return RemotingCommand.request(code, dict(_FIELDS), _BODY)


class Line:
    """One connection."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._socket = socket.create_connection((host, int(port)), 30)
        self._reader = FrameReader()

    def ask(self, command: RemotingCommand) -> RemotingCommand:
        self._socket.sendall(encode_command(command))
        while True:
            data = self._socket.recv(65536)
            assert data, "the server closed the connection"
            for answer in self._reader.receive(data):
                assert isinstance(answer, RemotingCommand)
                return answer

    def close(self) -> None:
        self._socket.close()


def _outcome(answer: RemotingCommand) -> str:
    if answer.code != _REFUSED:
        return "served"
    missing = _MISSING.search(answer.remark or "")
    return f"needs {missing[1]}" if missing else "refused"


def _needs_text(find: Needs, code: int, cluster: str) -> str:
    try:
        needs = list(find(_request(code), cluster))
    except CometError:
        return "super users"
    texts = [
        f"{' or '.join(action.name.title() for action in need.actions)} of {need.resource}"
        if need.actions
        else "super users"
        for need in needs
    ]
    return "; ".join(texts) or "a signature"


def _rows(
    server: str, address: str, codes: list[int], needs: Mapping[int, Needs], cluster: str
) -> Iterator[str]:
    table: dict[int, list[str]] = {code: [] for code in codes}
    for credentials in CALLERS.values():
        line = Line(address)
        for code in codes:
            command = _request(code)
            if credentials is not None:
                credentials.sign_command(command)
            table[code].append(_outcome(line.ask(command)))
        line.close()
    names = {int(code): code.name for code in Code} | _OWN_NAMES
    for code, outcomes in table.items():
        text = _needs_text(needs[code], code, cluster)
        cells = [server, str(code), f"`{names[code]}`", text, *outcomes]
        yield f"| {' | '.join(cells)} |\n"


def _controller_rows() -> list[str]:
    async def main() -> list[str]:
        with tempfile.TemporaryDirectory(prefix="cometmq-") as folder:
            settings = {
                "controllerPort": 0,
                "bindAddress": "127.0.0.1",
                "controllerStorePath": folder,
                **_SETTINGS,
            }
            config = load_controller_config(overrides=settings).config
            controller = open_controller(config, system_environment(), RealDisk())
            await controller.start()
            try:
                codes = sorted(CONTROLLER_NEEDS)
                return await asyncio.to_thread(
                    lambda: list(
                        _rows(
                            "controller",
                            controller.address,
                            codes,
                            CONTROLLER_NEEDS,
                            CONTROLLER_CLUSTER,
                        )
                    )
                )
            finally:
                await controller.stop()

    return asyncio.run(main())


def page() -> str:
    """Ask the servers; return the page."""
    with threaded_cluster(_SETTINGS) as cluster:
        with Admin(
            name_server=cluster.name_server_address,
            access_key=ROOT.access_key,
            secret_key=ROOT.secret_key,
        ) as admin:
            admin.create_topic("Orders", queue_count=1)
            for credentials in CALLERS.values():
                if credentials is not None and credentials.access_key not in ("root", "eve"):
                    admin.put_user(credentials.access_key, password=credentials.secret_key)
            for user, grants in (
                ("reader", {"Topic:Orders": "Sub", "Group:billing": "Sub"}),
                ("writer", {"Topic:Orders": "Pub"}),
            ):
                entries = [
                    {"resource": resource, "actions": [action], "decision": "Allow"}
                    for resource, action in grants.items()
                ]
                admin.put_policies(user, [{"policyType": "Custom", "entries": entries}])
        standalone = cluster.standalone
        needs = broker_needs(standalone.broker.transactions.halves)
        rows = [
            *_rows(
                "broker",
                cluster.broker_address,
                sorted(standalone.broker._server.handlers),
                needs,
                standalone.broker.config.broker_cluster_name,
            ),
            *_rows(
                "name server",
                cluster.name_server_address,
                sorted(NAME_SERVER_NEEDS),
                NAME_SERVER_NEEDS,
                NAME_SERVER_CLUSTER,
            ),
        ]
    rows += _controller_rows()
    heads = ["Server", "Code", "Name", "Needs", *CALLERS]
    return (
        "# Who may send which request\n\n"
        "<!-- Written by `python -m tests.access_outcomes`; edits here are lost. -->\n\n"
        "What servers with `authenticationEnabled=true` and `authorizationEnabled=true` answer to\n"
        "one request of each code, for the topic `Orders` and the group `billing`.\n"
        "`consumer` is a user with `Sub` of both, `producer` one with `Pub` of the topic.\n"
        "Refused requests are answered with code 16.\n"
        "A request that is served may still be answered with an error, as for a missing field;\n"
        "a super user is served always.\n"
        "[Control access](../how-to/control-access.md) says how to grant what is needed.\n\n"
        f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}\n" + "".join(rows)
    )


if __name__ == "__main__":
    PAGE.write_text(page(), "utf-8")
