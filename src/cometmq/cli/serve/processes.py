"""`broker --processes N`: starts a family of brokers, prints one ready line and one log."""

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cometmq.broker.base.config import BrokerConfig
    from cometmq.standalone.supervisor import ChildPlan

__all__ = ["PORT_STEP", "child_settings", "plans", "supervise"]

PORT_STEP: Final = 10
"""The ports of two brokers are this far apart: each broker also listens on P-2, for old clients."""
READY: Final = "cometmq broker: ready in "


def child_settings(config: "BrokerConfig", number: int, address: str | None) -> dict[str, str]:
    """The configuration keys in which broker `number` of a family differs from the others.

    A restarted broker keeps the port of `address`, the address of its previous process.

    Raises:
        ConfigError: the broker's port would be above 65535.
    """
    from cometmq.errors import ConfigError
    from cometmq.standalone.supervisor import child_store

    shift = PORT_STEP * number
    port = config.listen_port + shift if config.listen_port else 0
    if address is not None:
        port = int(address.rpartition(":")[2])
    if port > 65535:
        raise ConfigError(
            f"broker {number} would listen on port {port} = listenPort + {shift}; the highest is "
            "65535: give a lower --port or fewer --processes"
        )
    settings = {
        "brokerName": f"{config.broker_name}-{number}",
        "listenPort": str(port),
        "storePathRootDir": child_store(config.store_path(), config.broker_name, number),
    }
    commit_log = config.commit_log_path()
    if commit_log is not None:
        settings["storePathCommitLog"] = child_store(commit_log, config.broker_name, number)
    return settings


def plans(
    config: "BrokerConfig", count: int, root_options: Sequence[str], options: Sequence[str]
) -> "list[ChildPlan]":
    """The plan of each broker of the family: its name, command line and ready line.

    Args:
        root_options: the words before `broker`, such as -q.
        options: the options of `broker` without --processes; the keys of `child_settings` follow.
    """
    from cometmq.standalone.supervisor import ChildPlan

    def plan(number: int) -> ChildPlan:
        def command(address: str | None) -> list[str]:
            line = [sys.executable, "-m", "cometmq", *root_options, "broker", "--supervised"]
            line += options
            for key, value in child_settings(config, number, address).items():
                line += ["--set", f"{key}={value}"]
            return line

        return ChildPlan(f"{config.broker_name}-{number}", command, READY)

    return [plan(number) for number in range(count)]


async def supervise(
    config: "BrokerConfig",
    count: int,
    started: float,
    root_options: Sequence[str],
    options: Sequence[str],
) -> int:
    """Start the family, print the ready line when all brokers serve, wait for a signal, stop all.

    Returns the exit code: 0, or the code of a broker that ended before it served.

    Raises:
        ConfigError: a broker's port would be above 65535, or the store has another layout.
    """
    import asyncio
    import time

    from cometmq.cli.terminal.log_lines import child_line
    from cometmq.net.loop import wait_for_stop_signal
    from cometmq.standalone.supervisor import ChildFailed, Supervisor, check_stores

    check_stores(config.store_path(), config.broker_name, count)
    family = plans(config, count, root_options, options)
    for number in range(count):
        # Refuse a port above 65535 before any broker starts.
        child_settings(config, number, None)
    supervisor = Supervisor(
        family, lambda line: print(child_line(line), file=sys.stderr, flush=True)
    )
    stopped = asyncio.ensure_future(wait_for_stop_signal())
    serving = asyncio.ensure_future(supervisor.start())
    try:
        # The signal handlers are set before the first child starts, so that a signal during a long
        # recovery stops all brokers.
        await asyncio.wait((stopped, serving), return_when=asyncio.FIRST_COMPLETED)
        if serving.done():
            serving.result()
            print(
                f"{READY}{time.monotonic() - started:.2f} s, {count} "
                f"{'process' if count == 1 else 'processes'}, "
                f"brokers {' '.join(supervisor.addresses)}, store {config.store_path()}",
                flush=True,
            )
            await stopped
    except ChildFailed as error:
        print(f"cometmq: {error}", file=sys.stderr)
        return max(error.code, 1)
    finally:
        serving.cancel()
        stopped.cancel()
        await supervisor.stop()
    return 0
