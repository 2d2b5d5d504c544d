"""`cometmq group show` and `group set`: when brokers try a group's failed messages again.

Job: print and change how often and when a failed message is tried again. It must not compute
delays; `cometmq.core.retry.retry_policy` does.
"""

from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import click

from cometmq.cli.terminal import values
from cometmq.cli.terminal.namespace import CLUSTER_NAME, namespace, namespace_option
from cometmq.cli.terminal.options import (
    admin_client,
    json_option,
    name_server_option,
    set_up_logging,
    timeout_option,
)
from cometmq.listings.existing_group import require_group

if TYPE_CHECKING:
    from cometmq.client import Admin
    from cometmq.model import SubscriptionGroupConfig

__all__ = ["set_group", "show"]

DELAY_MS_MAX: Final = 366 * 86_400_000
"""`timerMaxDelaySec` as a broker begins with."""
_SHOWN: Final = 6
"""Delays that a person sees of a policy."""


def duration_ms(text: str) -> int:
    """`500ms`, `10s`, `5m`, `2h`, `1d` in milliseconds; a bare number is seconds."""
    found = values.duration_ms(text.strip(), default_unit="s")
    if found is None:
        raise click.BadParameter(f"{text!r} is no duration: write 500ms, 10s, 5m or 2h")
    if found > DELAY_MS_MAX:
        raise click.BadParameter(
            f"{text!r} is longer than {duration_text(DELAY_MS_MAX)}, the longest a message waits"
        )
    return found


def duration_text(milliseconds: int) -> str:
    """The shortest text that `duration_ms` reads back."""
    for unit in ("d", "h", "m", "s"):
        if milliseconds and milliseconds % values.UNIT_MS[unit] == 0:
            return f"{milliseconds // values.UNIT_MS[unit]}{unit}"
    return f"{milliseconds}ms" if milliseconds else "0s"


def _delays(ctx: click.Context, parameter: click.Parameter, value: str | None) -> list[int] | None:
    return None if value is None else [duration_ms(part) for part in value.split(",")]


def _exponential(
    ctx: click.Context, parameter: click.Parameter, value: str | None
) -> tuple[int, int, int] | None:
    if value is None:
        return None
    parts = value.split(",")
    factor = values.whole_number(parts[2].strip()) if len(parts) == 3 else None
    if factor is None:
        raise click.BadParameter(
            f"{value!r} is not FIRST,LONGEST,FACTOR: write for example 5s,2h,2"
        )
    first_ms, longest_ms = duration_ms(parts[0]), duration_ms(parts[1])
    if first_ms > longest_ms:
        raise click.BadParameter(
            f"{value!r} begins with {parts[0].strip()}, longer than the longest, "
            f"{parts[1].strip()}: write for example 5s,2h,2"
        )
    return first_ms, longest_ms, factor


@click.command("show", short_help="A group's settings: tries, delays, who may consume.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@timeout_option
@json_option
@click.pass_context
def show(ctx: click.Context, name: str, name_server: str, timeout_s: float, as_json: bool) -> None:
    """Show group NAME on each broker: how often and when a failed message is tried again."""
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    async def collect() -> "dict[str, SubscriptionGroupConfig]":
        async with admin_client(name_server, timeout_s) as admin:
            return await _existing(admin, name)

    print_listing(
        [_row(broker, config, as_json) for broker, config in sorted(run(collect()).items())],
        as_json=as_json,
    )


def _row(broker: str, config: "SubscriptionGroupConfig", as_json: bool) -> dict[str, Any]:
    from cometmq.core.retry.retry_policy import policy_of

    policy = policy_of(config.group_retry_policy)
    row: dict[str, Any] = {
        "group": namespace().unwrap(config.group_name),
        "broker": broker,
        "retry_max_times": config.retry_max_times,
        "policy": "levels" if policy is None else "customized" if policy.next_ms else "exponential",
    }
    if as_json:
        return row | {
            "group_retry_policy": config.group_retry_policy,
            "retry_queue_count": config.retry_queue_count,
            "consume_enable": config.consume_enable,
            "consume_message_orderly": config.consume_message_orderly,
            "attributes": config.attributes,
        }
    if policy is None:
        return row | {"delays": "the broker's, from level 3"}
    count = max(0, min(_SHOWN, config.retry_max_times))
    delays = [duration_text(policy.delay_ms(times)) for times in range(count)]
    more = " ..." if config.retry_max_times > count else ""
    return row | {"delays": " ".join(delays) + more}


async def _existing(admin: "Admin", name: str) -> "dict[str, SubscriptionGroupConfig]":
    await require_group(admin, name)
    return await admin.group_configs(name)


@click.command("set", short_help="Change how often and when failed messages are tried again.")
@click.argument("name", type=CLUSTER_NAME)
@name_server_option
@namespace_option
@click.option("--create", is_flag=True, help="Make the group where there is none.")
@click.option(
    "--retry-max-times",
    type=click.IntRange(min=0),
    metavar="N",
    help="Tries after the first; then the message is a dead letter.",
)
@click.option(
    "--retry-delays",
    metavar="10s,1m,...",
    callback=_delays,
    help="How long before each of these tries; the last one repeats.",
)
@click.option(
    "--retry-exponential",
    metavar="FIRST,LONGEST,FACTOR",
    callback=_exponential,
    help="Delays that grow, for example 5s,2h,2.",
)
@click.option("--retry-levels", is_flag=True, help="Back to the broker's delay levels.")
@timeout_option
@json_option
@click.pass_context
def set_group(
    ctx: click.Context,
    name: str,
    name_server: str,
    create: bool,
    retry_max_times: int | None,
    retry_delays: list[int] | None,
    retry_exponential: tuple[int, int, int] | None,
    retry_levels: bool,
    timeout_s: float,
    as_json: bool,
) -> None:
    """Change how often and when the failed messages of group NAME are tried again.

    \b
    cometmq group set billing --retry-max-times 5
    cometmq group set billing --retry-delays 10s,1m,10m
    cometmq group set billing --retry-exponential 5s,2h,2
    """
    set_up_logging(ctx)
    from cometmq.cli.terminal.output import print_listing
    from cometmq.net.loop import run

    policy = _policy(retry_delays, retry_exponential, is_levels=retry_levels)
    if policy is None and retry_max_times is None and not create:
        raise click.UsageError(
            "nothing to change: give --retry-max-times, --retry-delays, --retry-exponential or "
            "--retry-levels"
        )

    async def change() -> "dict[str, SubscriptionGroupConfig]":
        async with admin_client(name_server, timeout_s) as admin:
            before = await _before(admin, name, create=create)
            for broker, config in before.items():
                await admin.create_group(
                    replace(
                        config,
                        retry_max_times=(
                            config.retry_max_times if retry_max_times is None else retry_max_times
                        ),
                        group_retry_policy=policy or config.group_retry_policy,
                        attributes={},  # a request holds changes of attributes only
                    ),
                    broker_name=broker,
                )
            return await admin.group_configs(name)

    print_listing(
        [_row(broker, config, as_json) for broker, config in sorted(run(change()).items())],
        as_json=as_json,
    )


def _policy(
    delays_ms: list[int] | None, exponential: tuple[int, int, int] | None, *, is_levels: bool
) -> dict[str, Any] | None:
    """The policy to store; None keeps the stored one."""
    from cometmq.core.retry.retry_policy import customized_policy, exponential_policy

    if (delays_ms is not None) + (exponential is not None) + is_levels > 1:
        raise click.UsageError(
            "--retry-delays, --retry-exponential and --retry-levels exclude each other"
        )
    if delays_ms is not None:
        return customized_policy(delays_ms)
    if exponential is not None:
        return exponential_policy(*exponential)
    return {"type": "CUSTOMIZED"} if is_levels else None


async def _before(
    admin: "Admin", name: str, *, create: bool
) -> "dict[str, SubscriptionGroupConfig]":
    """The group's settings by broker; the defaults where a broker does not know the group."""
    from cometmq.model import SubscriptionGroupConfig

    if not create:
        return await _existing(admin, name)
    info = await admin.cluster_info()
    masters = [broker for broker, data in info.brokers.items() if data.master_address is not None]
    known = await admin.group_configs(name)
    return {broker: known.get(broker, SubscriptionGroupConfig(name)) for broker in masters}
