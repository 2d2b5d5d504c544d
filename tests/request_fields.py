"""Fields of hand-written requests, as a 5.4.0 client sends them."""


def send_fields(topic: str, properties: str = "", **more: str) -> dict[str, str]:
    """SEND_MESSAGE_V2 (310) to queue 0; `more` by their short names."""
    return {
        "a": "producers",
        "b": topic,
        "c": "TBW102",
        "d": "1",
        "e": "0",
        "f": "0",
        "g": "1700000000000",
        "h": "0",
        "i": properties,
        "j": "0",
        "k": "false",
        "m": "false",
        **more,
    }


def pull_fields(topic: str, queue_offset: int, queue_id: int = 0, **more: str) -> dict[str, str]:
    """PULL_MESSAGE (11) of everything there is, 32 at most; it is never held."""
    return {
        "consumerGroup": "consumers",
        "topic": topic,
        "queueId": str(queue_id),
        "queueOffset": str(queue_offset),
        "maxMsgNums": "32",
        "sysFlag": "4",
        "commitOffset": "0",
        "suspendTimeoutMillis": "0",
        "subscription": "*",
        "subVersion": "0",
        "expressionType": "TAG",
        **more,
    }


LONG_NAMES = {
    "a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums",
    "e": "queueId", "f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties",
    "j": "reconsumeTimes", "k": "unitMode", "l": "maxReconsumeTimes", "m": "batch",
}  # fmt: skip
