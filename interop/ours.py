"""Our client as a driver with the same commands as the foreign ones (interop/README.md).

Job: run each command by a call or two of `cometmq`'s public names.
Must not: know a scenario's expectations; use a name that is not public.
"""

import asyncio
import base64
import contextlib
import json
import logging
import sys
import threading
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import cometmq
from cometmq.codec.properties import split_keys
from interop.driver import mark

__all__ = ["main"]

Given = dict[str, Any]


def emit(event: Given) -> None:
    """Write one event to stdout."""
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


OUTCOMES: Final = {
    "COMMIT": cometmq.TransactionOutcome.COMMIT,
    "ROLLBACK": cometmq.TransactionOutcome.ROLLBACK,
    "UNKNOW": cometmq.TransactionOutcome.UNKNOWN,
}
"""RocketMQ's spelling."""


def queue_of(given: Given) -> cometmq.MessageQueue:
    """The queue in a command's spelling."""
    return cometmq.MessageQueue(given["topic"], given["broker"], given["id"])


def _selected(given: Given) -> dict[str, str]:
    """The filter of each topic: tags or, with `sql`, a predicate over properties."""
    topics: dict[str, str] = given.get("topics") or {}
    if not given.get("sql"):
        return topics
    return {topic: cometmq.Sql92(expression) for topic, expression in topics.items()}


def show_queue(queue: cometmq.MessageQueue) -> Given:
    """The queue in the spelling of events."""
    return {"topic": queue.topic, "broker": queue.broker_name, "id": queue.queue_id}


def show(message: cometmq.ReceivedMessage) -> Given:
    """The message in the spelling of events."""
    return {
        "topic": message.topic,
        "broker": message.broker_name,
        "queueId": message.queue_id,
        "queueOffset": message.queue_offset,
        "body": mark(message.body),
        "tags": message.tags,
        "keys": " ".join(message.keys) or None,
        "properties": message.properties,
        "flag": message.flag,
        "reconsumeTimes": message.reconsume_times,
        "msgId": message.message_id,
        "offsetMsgId": message.offset_message_id,
        "bornTime": message.born_timestamp_ms,
        "storeTime": message.store_timestamp_ms,
        "bornHost": message.born_host.rpartition(":")[0],
    }


def describe(error: BaseException) -> Given:
    """The exception in the spelling of events."""
    described: Given = {"type": type(error).__name__, "text": str(error)}
    code = getattr(error, "code", None)
    if isinstance(code, int):
        described["code"] = code
    return described


def show_result(result: cometmq.SendResult) -> Given:
    """The send's result in the spelling of events."""
    return {
        "status": result.status.name,
        "msgId": result.message_id,
        "offsetMsgId": result.offset_message_id,
        "queue": show_queue(result.message_queue),
        "queueOffset": result.queue_offset,
        "recallHandle": result.recall_handle,
    }


def message_of(wanted: Given) -> cometmq.Message:
    """The message a command describes."""
    return cometmq.Message(
        wanted["topic"],
        base64.b64decode(wanted["body"]),
        tags=wanted.get("tags"),
        keys=split_keys(wanted.get("keys") or ""),
        properties=wanted.get("properties", {}),
        flag=wanted.get("flag", 0),
        delay_level=wanted.get("delay", 0),
        message_group=wanted.get("shard"),
        deliver_time_ms=wanted.get("deliverAt"),
        # Our client takes milliseconds only.
        delay_ms=wanted["delaySec"] * 1000 if "delaySec" in wanted else wanted.get("delayMs"),
    )


class Driver:
    """The clients of this process, by name."""

    def __init__(self) -> None:
        self._producers: dict[str, cometmq.Producer] = {}
        self._transactors: dict[str, cometmq.TransactionProducer] = {}
        self._admins: dict[str, cometmq.Admin] = {}
        self._pushers: dict[str, cometmq.PushConsumer] = {}
        self._pullers: dict[str, cometmq.PullConsumer] = {}

    async def answer(self, given: Given) -> None:
        """Run one command and write its answer."""
        answer: Given = {"id": given["id"]}
        try:
            name = "do_" + given["do"]
            command: Callable[[Given], Awaitable[Any]] | None = getattr(self, name, None)
            if command is None:
                raise LookupError(f"no command is called {given['do']}")
            answer["result"] = await command(given)
        except Exception as error:
            logging.getLogger("interop").exception("%s failed", given["do"])
            answer["error"] = describe(error)
        emit(answer)

    # -- producers --------------------------------------------------------------------------

    async def do_producer(self, given: Given) -> Any:
        """Start a producer."""
        producer = cometmq.Producer(
            given["group"],
            name_server=given["nameServer"],
            instance_name=given.get("instance"),
            timeout_ms=10_000,
            compress_above_bytes=given.get("compressAbove", 4096),
            namespace=given.get("namespace"),
            sandbox=given.get("sandbox"),
        )
        await producer.start()
        self._producers[given["name"]] = producer
        self._admins[given["name"]] = cometmq.Admin(name_server=given["nameServer"])
        return producer.client_id

    async def do_closeProducer(self, given: Given) -> None:  # noqa: N802 - a command's name
        """Stop a producer."""
        await self._producers.pop(given["name"]).shutdown()
        await self._admins.pop(given["name"]).shutdown()

    async def do_send(self, given: Given) -> Any:
        """Send messages one by one, all at once, or as a batch."""
        producer = self._producers[given["name"]]
        wanted = given["messages"]
        mode = given["mode"]
        if mode == "batch":
            return [
                show_result(result)
                for result in await producer.send_batch([message_of(item) for item in wanted])
            ]
        if mode == "async":
            return await asyncio.gather(*(self._send_one(producer, "sync", m) for m in wanted))
        results = []
        for item in wanted:
            result = await self._send_one(producer, mode, item)
            while given.get("untilOk") and result.get("status") != "SEND_OK":
                result = await self._send_one(producer, mode, item)
            results.append(result)
            if given.get("progress"):
                emit({"event": "sent", "name": given["name"], "result": result})
        return results

    async def _send_one(self, producer: cometmq.Producer, mode: str, wanted: Given) -> Given:
        try:
            message = message_of(wanted)
            if mode == "oneway":
                await producer.send_oneway(message)
                return {"status": "ONEWAY"}
            queue = queue_of(wanted["queue"]) if mode == "queue" else None
            return show_result(await producer.send(message, queue=queue))
        except Exception as error:
            return {"error": describe(error)}

    async def do_recall(self, given: Given) -> Any:
        """Recall a timed message; return its id."""
        return await self._producers[given["name"]].recall(given["topic"], given["handle"])

    async def do_request(self, given: Given) -> Any:
        """Send a request and show its reply."""
        reply = await self._producers[given["name"]].request(
            message_of(given["message"]), timeout_ms=given["timeout"]
        )
        return {"body": mark(reply.body), "tags": reply.tags}

    async def do_transactor(self, given: Given) -> Any:
        """Start a transactional producer; properties of its messages say how they end."""

        async def check(message: cometmq.ReceivedMessage) -> cometmq.TransactionOutcome:
            emit({"event": "message", "name": given["name"], "message": show(message)})
            return OUTCOMES[message.properties.get("check", "UNKNOW")]

        producer = cometmq.TransactionProducer(
            given["group"],
            check=check,
            name_server=given["nameServer"],
            instance_name=given.get("instance"),
            timeout_ms=10_000,
            namespace=given.get("namespace"),
            sandbox=given.get("sandbox"),
        )
        await producer.start()
        self._transactors[given["name"]] = producer
        return producer.client_id

    async def do_closeTransactor(self, given: Given) -> None:  # noqa: N802 - a command's name
        """Stop a transactional producer."""
        await self._transactors.pop(given["name"]).shutdown()

    async def do_transact(self, given: Given) -> Any:
        """Send messages in transactions, one by one."""
        producer = self._transactors[given["name"]]
        return [
            show_result(
                (
                    await producer.send_in_transaction(
                        message_of(item),
                        lambda t: OUTCOMES[t.message.properties.get("local", "UNKNOW")],
                    )
                ).sent
            )
            for item in given["messages"]
        ]

    async def do_queues(self, given: Given) -> Any:
        """Queues to send to."""
        producer = self._producers[given["name"]]
        return [show_queue(queue) for queue in await producer.fetch_publish_queues(given["topic"])]

    # -- questions --------------------------------------------------------------------------

    async def do_query(self, given: Given) -> Any:
        """Messages by key and time."""
        found = await self._admins[given["name"]].query_message(
            given["topic"],
            given["key"],
            count_max=given["max"],
            begin_ms=given["begin"],
            end_ms=given["end"],
        )
        return [show(message) for message in found]

    async def do_view(self, given: Given) -> Any:
        """A message by either of its ids."""
        return show(await self._admins[given["name"]].view_message(given["msgId"], given["topic"]))

    async def do_offsets(self, given: Given) -> Any:
        """Smallest and next offset of a queue, and when its oldest message was stored."""
        admin, queue = self._admins[given["name"]], queue_of(given["queue"])
        return {
            "min": await admin.min_offset(queue),
            "max": await admin.max_offset(queue),
            "earliest": await admin.earliest_store_time(queue),
        }

    async def do_search(self, given: Given) -> Any:
        """The offset of a time."""
        admin = self._admins[given["name"]]
        return await admin.search_offset(queue_of(given["queue"]), given["time"])

    # -- push consumers ---------------------------------------------------------------------

    async def do_push(self, given: Given) -> Any:
        """Start a push consumer that writes an event for each message."""
        fail_times = given.get("failTimes", 0)

        async def handle(message: cometmq.ReceivedMessage) -> None:
            emit({"event": "message", "name": given["name"], "message": show(message)})
            if "replyBy" in given:
                reply = cometmq.Message(message.topic, b"re: " + message.body, tags="reply")
                await self._producers[given["replyBy"]].reply(message, reply)
            if message.reconsume_times < fail_times:
                raise cometmq.RetryLater(given.get("failLevel", 0))

        more: Given = {}
        if "maxReconsume" in given:
            more["max_reconsume_times"] = given["maxReconsume"]
        if given.get("broadcasting"):
            more["message_model"] = cometmq.MessageModel.BROADCASTING
            more["offset_folder"] = str(Path.cwd() / "offsets")
        consumer = cometmq.PushConsumer(
            given["group"],
            _selected(given),
            handle,
            name_server=given["nameServer"],
            consume_from="last" if given.get("fromLast") else "first",
            concurrency=1,
            instance_name=given.get("instance"),
            namespace=given.get("namespace"),
            sandbox=given.get("sandbox"),
            **more,
        )
        await consumer.start()
        self._pushers[given["name"]] = consumer
        return consumer.client_id

    async def do_closePush(self, given: Given) -> None:  # noqa: N802 - a command's name
        """Stop a push consumer."""
        await self._pushers.pop(given["name"]).shutdown()

    async def do_ordered(self, given: Given) -> Any:
        """Start an ordered consumer that writes an event when the handler of a message ends."""

        async def handle(message: cometmq.ReceivedMessage) -> bool:
            begun = time.time()  # noqa: TID251 - drivers compare their times
            fails = message.reconsume_times < int(message.properties.get("fail", "0"))
            await asyncio.sleep(int(message.properties.get("slow", "0")) / 1000)
            ended = time.time()  # noqa: TID251 - see above
            times = {"begun": int(begun * 1000), "ended": int(ended * 1000)}
            shown = {**show(message), **times, "failed": fails}
            emit({"event": "message", "name": given["name"], "message": shown})
            return not fails

        consumer = cometmq.PushConsumer(
            given["group"],
            _selected(given),
            handle,
            name_server=given["nameServer"],
            consume_from="first",
            order=given.get("order", "queue"),
            suspend_ms=100,
            max_reconsume_times=given.get("maxReconsume"),
            instance_name=given.get("instance"),
        )
        await consumer.start()
        self._pushers[given["name"]] = consumer
        return consumer.client_id

    async def do_closeOrdered(self, given: Given) -> None:  # noqa: N802 - a command's name
        """Stop an ordered consumer."""
        await self.do_closePush(given)

    async def do_pushAssigned(self, given: Given) -> Any:  # noqa: N802 - a command's name
        """Queues a push consumer has now."""
        return [show_queue(queue) for queue in self._pushers[given["name"]].assignment()]

    # -- lite pull --------------------------------------------------------------------------

    async def do_lite(self, given: Given) -> Any:
        """Start a pull consumer."""
        consumer = cometmq.PullConsumer(
            given["group"],
            _selected(given),
            name_server=given["nameServer"],
            consume_from="first",
            auto_commit=given.get("autoCommit", False),
            instance_name=given.get("instance"),
        )
        await consumer.start()
        self._pullers[given["name"]] = consumer
        return consumer.client_id

    async def do_closeLite(self, given: Given) -> None:  # noqa: N802 - a command's name
        """Stop a pull consumer."""
        await self._pullers.pop(given["name"]).shutdown()

    async def do_poll(self, given: Given) -> Any:
        """Return the messages that are ready."""
        found = await self._pullers[given["name"]].poll(given["timeout"])
        return [show(message) for message in found]

    async def do_liteQueues(self, given: Given) -> Any:  # noqa: N802 - a command's name
        """All queues of a topic."""
        found = await self._pullers[given["name"]].fetch_queues(given["topic"])
        return [show_queue(queue) for queue in found]

    async def do_assign(self, given: Given) -> None:
        """Assign exactly these queues."""
        await self._pullers[given["name"]].assign([queue_of(item) for item in given["queues"]])

    async def do_seek(self, given: Given) -> None:
        """Continue at another offset."""
        consumer, queue = self._pullers[given["name"]], queue_of(given["queue"])
        if given["to"] == "begin":
            await consumer.seek_to_begin(queue)
        elif given["to"] == "end":
            await consumer.seek_to_end(queue)
        else:
            await consumer.seek(queue, int(given["to"]))

    async def do_commit(self, given: Given) -> None:
        """Store positions."""
        await self._pullers[given["name"]].commit()

    async def do_committed(self, given: Given) -> Any:
        """The stored offset, -1 for none."""
        stored = await self._pullers[given["name"]].committed(queue_of(given["queue"]))
        return -1 if stored is None else stored

    async def do_pause(self, given: Given) -> None:
        """Pause a queue."""
        self._pullers[given["name"]].pause([queue_of(given["queue"])])

    async def do_resume(self, given: Given) -> None:
        """Resume a queue."""
        self._pullers[given["name"]].resume([queue_of(given["queue"])])

    async def do_liteTime(self, given: Given) -> Any:  # noqa: N802 - a command's name
        """The offset of a time."""
        queue = queue_of(given["queue"])
        found = await self._pullers[given["name"]].offsets_for_times({queue: given["time"]})
        return found[queue]


RUNNING: Final[set["asyncio.Task[None]"]] = set()


async def main() -> None:
    """Serve commands until stdin ends."""
    loop = asyncio.get_running_loop()
    driver = Driver()
    ended = asyncio.Event()

    def begin(given: Given) -> None:
        task = loop.create_task(driver.answer(given))
        RUNNING.add(task)
        task.add_done_callback(RUNNING.discard)

    def read() -> None:
        with contextlib.suppress(RuntimeError):  # the loop is closed: the process ends
            for line in sys.stdin.buffer:
                loop.call_soon_threadsafe(begin, json.loads(line))
            loop.call_soon_threadsafe(ended.set)

    threading.Thread(target=read, daemon=True).start()
    emit({"event": "ready"})
    await ended.wait()


if __name__ == "__main__":
    logging.basicConfig(
        level=logging.INFO,
        stream=sys.stderr,
        format="%(asctime)s %(levelname)s %(name)s %(message)s",
    )
    asyncio.run(main())
