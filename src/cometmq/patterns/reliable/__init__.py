"""Messages that are stored before the program has decided, and notices that HTTP receivers get.

- `ReliableMessages` prepares, confirms and drops messages, and asks back where neither came.
- `HttpCallbacks` is a transport of a `Relay`: it posts messages to the URLs of their receivers.
- `NoticeQueries` answers receivers that ask for what they have missed.

The rows are an outbox's (`cometmq.patterns.outbox`), and its relay sends them.
"""

from cometmq.patterns.reliable.http import NOTICE_PAUSES_MS, HttpCallbacks
from cometmq.patterns.reliable.messages import MessageDropped, ReliableMessages
from cometmq.patterns.reliable.queries import NoticeQueries

__all__ = [
    "NOTICE_PAUSES_MS",
    "HttpCallbacks",
    "MessageDropped",
    "NoticeQueries",
    "ReliableMessages",
]
