"""Waits for the topics of a consumer that have no route yet.

A consumer may start before the first message creates its topic.  So it waits after the answer "no
such topic" (17), as Java's does (``MQClientInstance.updateTopicRouteInfoFromNameServer``).  A name
server that does not answer within one request timeout usually has a wrong address, so that is an
error; within this time the client reconnects.  The pauses between two fetches grow from one second
to the interval of the ordinary refresh, because a missing topic appears either soon or much later.
"""

import asyncio
import logging
from collections.abc import Callable, Collection
from typing import Final

from cometmq.client.base.instance import ClientInstance
from cometmq.errors import AccessDenied, ClientError, CometError, TlsFailed
from cometmq.model.names import RETRY_PREFIX

__all__ = ["AwaitedTopics"]

log = logging.getLogger("cometmq.client")

FIRST_PAUSE_S: Final = 1.0
LAST_PAUSE_S: Final = 30.0
RECONNECT_PAUSE_S: Final = 0.1


class AwaitedTopics:
    """The topics of one consumer that no name server knows yet."""

    def __init__(
        self, instance: ClientInstance, group: str, wanted: Callable[[], Collection[str]]
    ) -> None:
        self._instance = instance
        self._group = group
        self._wanted = wanted
        self._topics: set[str] = set()
        self._pause_s = FIRST_PAUSE_S
        self._is_asking = False

    def __contains__(self, topic: str) -> bool:
        return topic in self._topics

    async def learn(self, topic: str) -> bool:
        """Fetch a topic's route, or wait for it in the background if there is none.

        Returns:
            Whether a name server has said which queues the topic has; none is an answer too.

        Raises:
            ClientError: no name server has answered within the request timeout.
        """
        routes = self._instance.routes
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._instance.options.request_timeout_ms / 1000
        while routes.cached(topic) is None:
            try:
                if await routes.refresh(topic) is None:
                    self.add(topic)
                    return True
            except (AccessDenied, TlsFailed):
                raise  # waiting does not help
            except ClientError as error:
                if routes.has_answered:
                    self.add(topic, error)
                    return False
                if loop.time() >= deadline:
                    raise
                await asyncio.sleep(RECONNECT_PAUSE_S)
            except CometError as error:
                self.add(topic, error)
                return False
        return True

    def add(self, topic: str, cause: CometError | None = None) -> None:
        """Wait for a topic, and log so once."""
        if topic in self._topics:
            return
        self._topics.add(topic)
        # The next heartbeat creates the group's own retry topic, so that is no warning.
        log.log(
            logging.DEBUG if topic.startswith(RETRY_PREFIX) else logging.WARNING,
            "group %s waits for the topic %s: %s; it is consumed as soon as a name server (%s) "
            "has its route",
            self._group,
            topic,
            cause if cause is not None else "it does not exist yet",
            ";".join(self._instance.routes.name_servers),
        )
        self._pause_s = FIRST_PAUSE_S
        if not self._is_asking:
            self._is_asking = True
            self._instance.spawn(self._ask_again(), "awaited-topics")

    async def _ask_again(self) -> None:
        try:
            while self._topics:
                pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, LAST_PAUSE_S)
                await asyncio.sleep(pause_s)
                self._topics &= set(self._wanted())
                for topic in sorted(self._topics):
                    await self._instance.refresh_route(topic)
                    if self._instance.routes.cached(topic) is not None:
                        self._topics.discard(topic)
                        # The topic's brokers are about to create the group's retry topic.
                        self._pause_s = FIRST_PAUSE_S
                        log.info("group %s: the topic %s has appeared", self._group, topic)
        finally:
            self._is_asking = False
