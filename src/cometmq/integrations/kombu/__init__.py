"""A transport for Kombu, and so for Celery (extra ``celery``).

    import cometmq.integrations.kombu  # gives Kombu the scheme cometmq://
    from celery import Celery

    app = Celery("shop", broker="cometmq://127.0.0.1:9876")

Kombu looks schemes up in a table of its own and allows no class path in an address, so one import
is the least that a program can do.

What maps to what:

- A queue is a topic and a consumer group of its name; each worker is a member of the group.
- An exchange is a topic, and a routing key is the tag.  A queue's group also subscribes to the
  topics of the exchanges that the queue is bound to: by tag for a direct exchange; all of them,
  filtered here, for topic and fanout exchanges.  So a publisher needs to know no binding.
- The default exchange sends to the topic of the queue.  An exchange and a queue with one name share
  a topic, which is what Celery's ``celery`` is.
- A temporary queue (exclusive or auto_delete: remote control, events, replies) has neither topic
  nor group: its one reader reads the exchanges' topics from where it was declared.  What is sent to
  its name by the default exchange goes through the topic ``%-replies``.
- A virtual host is a prefix of all names.

Outcomes: an acknowledgement counts as consumed, and the group's offset is committed up to the
oldest message that is unsettled.  ``reject(requeue=True)`` sends a copy to the end of the queue;
``reject()`` sends one to the group's dead letters.  After a crash the unsettled messages come
again, and with them those that were acknowledged out of order behind them.  After a clean end only
the unsettled ones do.

A message that stays unsettled for long, because its task runs for hours, is replaced by a timed
copy (a lease, see ``leases``), so that it neither holds up its message queue nor runs twice when
the queue moves to another worker.

A task with an ``eta`` or ``countdown`` is a timed message, so that no worker holds it.  Priorities
have no effect.
"""

from cometmq.extras import require

require("celery", "cometmq.integrations.kombu")

from kombu.transport import TRANSPORT_ALIASES  # noqa: E402

from cometmq.integrations.kombu.transport import Transport  # noqa: E402

__all__ = ["Transport"]

TRANSPORT_ALIASES["cometmq"] = "cometmq.integrations.kombu:Transport"
