"""The synchronous admin client: the shared coroutines over blocking sockets."""

from collections.abc import Sequence
from types import TracebackType
from typing import Self, Unpack

from cometmq.client.admin.calls import AdminCalls
from cometmq.client.base import fork
from cometmq.client.base.options import ClientOptions, CommonOptions
from cometmq.client.base.routes import RouteBook
from cometmq.client.base.sync_connection import blocking_io
from cometmq.client.base.synchronous import in_caller
from cometmq.net.env import Environment

__all__ = ["Admin"]


class Admin:
    """Topics, groups, offsets and messages of a cluster; ``with Admin(...)``.

    Arguments, names and results as those of `cometmq.Admin`.
    """

    def __init__(
        self,
        *,
        name_server: str | Sequence[str] | None = None,
        timeout_ms: int = 5_000,
        env: Environment | None = None,
        **common: Unpack[CommonOptions],
    ) -> None:
        options = ClientOptions.of(
            name_server, env=env, request_timeout_ms=timeout_ms, **common
        ).of_whole_cluster("Admin")
        self._name_servers = options.name_servers
        self._io = blocking_io(options)
        self._calls = AdminCalls(
            self._io, RouteBook(self._io, options.name_servers, timeout_ms), timeout_ms
        )
        fork.register(self)

    def start(self) -> None:
        """Do nothing; here for symmetry with the other clients."""

    def shutdown(self) -> None:
        """Disconnect."""
        self._io.close()

    def update_name_servers(self, name_server: str | Sequence[str]) -> None:
        """Use other name servers from now on: the next request goes to one of them.

        Takes what ``name_server=`` takes.  May be called before the start and in any thread.

        Raises:
            ConfigError: an entry is neither ``host:port`` nor the URL of an address server.
        """
        self._name_servers.change(name_server)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.shutdown()

    def after_fork(self) -> None:
        """In a child process: leave the parent's connections alone, make new ones."""
        self._io.after_fork()

    cluster_info = in_caller(AdminCalls.cluster_info)
    replicas = in_caller(AdminCalls.replicas)
    end_writes = in_caller(AdminCalls.end_writes)
    allow_writes = in_caller(AdminCalls.allow_writes)
    step_down = in_caller(AdminCalls.step_down)
    broker_runtime_info = in_caller(AdminCalls.broker_runtime_info)
    put_user = in_caller(AdminCalls.put_user)
    delete_user = in_caller(AdminCalls.delete_user)
    users = in_caller(AdminCalls.users)
    put_policies = in_caller(AdminCalls.put_policies)
    delete_policies = in_caller(AdminCalls.delete_policies)
    policies = in_caller(AdminCalls.policies)
    answer_times = in_caller(AdminCalls.answer_times)
    consume_stats = in_caller(AdminCalls.consume_stats)
    topic_stats = in_caller(AdminCalls.topic_stats)
    topics_by_group = in_caller(AdminCalls.topics_by_group)
    timer_counts = in_caller(AdminCalls.timer_counts)
    sign_in = in_caller(AdminCalls.sign_in)
    check_up = in_caller(AdminCalls.check_up)
    message_trace = in_caller(AdminCalls.message_trace)
    explain_lag = in_caller(AdminCalls.explain_lag)
    explain_lags = in_caller(AdminCalls.explain_lags)
    why = in_caller(AdminCalls.why)
    set_backlog_rules = in_caller(AdminCalls.set_backlog_rules)
    rescue = in_caller(AdminCalls.rescue)
    replay = in_caller(AdminCalls.replay)
    skipped = in_caller(AdminCalls.skipped)
    runtime_info_at = in_caller(AdminCalls.runtime_info_at)
    broker_config = in_caller(AdminCalls.broker_config)
    change_broker_config = in_caller(AdminCalls.change_broker_config)
    online_clients = in_caller(AdminCalls.online_clients)
    consumer_running_info = in_caller(AdminCalls.consumer_running_info)
    consume_directly = in_caller(AdminCalls.consume_directly)
    open_transactions = in_caller(AdminCalls.open_transactions)
    create_topic = in_caller(AdminCalls.create_topic)
    grow_topic = in_caller(AdminCalls.grow_topic)
    shrink_topic = in_caller(AdminCalls.shrink_topic)
    close_topic_growth = in_caller(AdminCalls.close_topic_growth)
    topic_growth = in_caller(AdminCalls.topic_growth)
    set_when_away = in_caller(AdminCalls.set_when_away)
    delete_topic = in_caller(AdminCalls.delete_topic)
    topic_list = in_caller(AdminCalls.topic_list)
    topic_route = in_caller(AdminCalls.topic_route)
    topic_config = in_caller(AdminCalls.topic_config)
    topic_at_masters = in_caller(AdminCalls.topic_at_masters)
    topic_groups = in_caller(AdminCalls.topic_groups)
    topic_offsets = in_caller(AdminCalls.topic_offsets)
    max_offset = in_caller(AdminCalls.max_offset)
    min_offset = in_caller(AdminCalls.min_offset)
    search_offset = in_caller(AdminCalls.search_offset)
    earliest_store_time = in_caller(AdminCalls.earliest_store_time)
    group_list = in_caller(AdminCalls.group_list)
    group_configs = in_caller(AdminCalls.group_configs)
    create_group = in_caller(AdminCalls.create_group)
    delete_group = in_caller(AdminCalls.delete_group)
    consumer_list = in_caller(AdminCalls.consumer_list)
    group_topics = in_caller(AdminCalls.group_topics)
    group_offsets = in_caller(AdminCalls.group_offsets)
    commit_offsets = in_caller(AdminCalls.commit_offsets)
    reset_offsets = in_caller(AdminCalls.reset_offsets)
    reset_queue_offsets = in_caller(AdminCalls.reset_queue_offsets)
    view_message = in_caller(AdminCalls.view_message)
    query_message = in_caller(AdminCalls.query_message)
