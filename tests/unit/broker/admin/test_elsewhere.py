"""Requests of RocketMQ's tools about parts that this broker does not have."""

from pathlib import Path

from tests.unit.broker.harness import Client, scenario

from cometmq.broker import Broker
from cometmq.errors import ResponseCode
from cometmq.wire.command.codes import RequestCode as Code
from cometmq.wire.command.fastjson import dumps, loads_object

ANSWERS = [
    (Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {"topic": "t"}, b"", 0, None),
    (Code.EXPORT_ROCKSDB_CONFIG_TO_JSON, {"configType": "topics;"}, b"", 0, "export done."),
    (Code.SET_MESSAGE_REQUEST_MODE, {}, dumps({"topic": "t", "mode": "PULL"}), 0, None),
    (Code.SET_MESSAGE_REQUEST_MODE, {}, dumps({"topic": "t", "mode": "POP"}), 3, "POP is not"),
    (Code.SET_MESSAGE_REQUEST_MODE, {}, b"\xff{", 29, "MessageRequestMode"),
    (Code.SET_MESSAGE_REQUEST_MODE, {}, dumps([]), 29, "MessageRequestMode"),
    (Code.UPDATE_AND_CREATE_STATIC_TOPIC, {"topic": "t"}, b"{}", 3, "cometmq topic grow"),
    (Code.RESET_MASTER_FLUSH_OFFSET, {"masterFlushOffset": "7"}, b"", 0, "themselves"),
    (Code.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "0"}, b"", 0, "success, mode: 0"),
    (Code.SET_COMMITLOG_READ_MODE, {"READ_AHEAD_MODE": "1"}, b"", 29, "READ_AHEAD_MODE is '1'"),
    (Code.SET_COMMITLOG_READ_MODE, {}, b"", 1, "no READ_AHEAD_MODE"),
    (Code.SWITCH_TIMER_ENGINE, {"E_T": "F"}, b"", 0, "switch timer engine success"),
    (Code.SWITCH_TIMER_ENGINE, {"E_T": "R"}, b"", 29, "no RocksDB"),
    (Code.SWITCH_TIMER_ENGINE, {"E_T": "x"}, b"", 29, "E_T is 'x'"),
    (Code.POP_ROLLBACK, {}, b"", 0, "no POP records"),
]


def test_answers(tmp_path: Path) -> None:
    """Success where nothing is asked for, else the reason; never silence."""

    async def story(broker: Broker, client: Client) -> None:
        for request_code, ext, body, code, remark in ANSWERS:
            reply = await client.call(request_code, ext, body)
            assert (request_code, reply.code) == (request_code, code), reply.remark
            assert remark is None or remark in (reply.remark or "")
        reply = await client.call(Code.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, {})
        assert loads_object(reply.body, "body")["checkStatus"] == 0

    scenario(tmp_path, story)


def test_cold_data_thresholds_are_noted(tmp_path: Path) -> None:
    """Set, shown in RocketMQ's form, removed; lines that are none are passed over."""

    async def story(broker: Broker, client: Client) -> None:
        lines = b"a=100\nb=many\n# c=1\nd = 7\n"
        answer = await client.call(Code.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, {}, lines)
        assert answer.code == ResponseCode.SUCCESS
        shown = loads_object(
            (await client.call(Code.GET_COLD_DATA_FLOW_CTR_INFO, {}, b"")).body, "body"
        )
        assert shown["configTable"] == {"a": 100, "d": 7}
        assert (shown["runtimeTable"], shown["globalAcc"]) == ({}, 0)
        await client.call(Code.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, {}, b"a")
        shown = loads_object(
            (await client.call(Code.GET_COLD_DATA_FLOW_CTR_INFO, {}, b"")).body, "body"
        )
        assert shown["configTable"] == {"d": 7}

    scenario(tmp_path, story)
