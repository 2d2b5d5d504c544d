"""Measures what SQL92 filters cost on one core: parsing, evaluation, bitmaps.

    chrt -f 10 taskset -c 0 .venv/bin/python -m bench.filter_rates [--rounds 7]

Each figure is the best round by processor time, as other programs may share the machine.  The
message has eight properties, as a Java producer's has.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable

from cometmq.codec.properties import decode_properties, encode_properties
from cometmq.core.filter.bloom_filter import BloomFilter
from cometmq.core.filter.filter_table import FilterTable
from cometmq.core.filter.sql92.expression import Expression

MESSAGE = {
    "UNIQ_KEY": "7F000001006930946E0969A100000001",
    "KEYS": "order-1",
    "TAGS": "paid",
    "WAIT": "true",
    "CLUSTER": "DefaultCluster",
    "amount": "120",
    "region": "eu-west",
    "price": "19.90",
}
FILTERS = (
    "region = 'eu-west'",
    "amount > 100",
    "amount > 100 AND region = 'eu-west'",
    "amount BETWEEN 100 AND 200 AND region IN ('eu-west', 'eu-north') AND vip IS NULL",
    "price > 9.99 OR KEYS STARTSWITH 'order'",
    "(vip = 'yes' AND amount > 1000) OR region CONTAINS 'west'",
)
CALLS = 20_000


def nanoseconds(work: Callable[[], object], rounds: int, calls: int = CALLS) -> float:
    """Processor time of one call in the best round."""
    best = float("inf")
    for _ in range(rounds):
        start = time.process_time_ns()
        for _ in range(calls):
            work()
        best = min(best, (time.process_time_ns() - start) / calls)
    return best


def show(what: str, cost_ns: float) -> None:
    """Print one line of the result."""
    print(f"{cost_ns:10,.0f} ns {1e9 / cost_ns:14,.0f} /s  {what}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rounds", type=int, default=7)
    rounds = parser.parse_args().rounds
    loop = nanoseconds(lambda: None, rounds)
    print(f"an empty call takes {loop:.0f} ns, which are taken off")
    for text in FILTERS:
        expression = Expression(text)
        cost = nanoseconds(lambda found=expression: found.matches(MESSAGE), rounds)  # type: ignore[misc]
        show(text, cost - loop)
    raw = encode_properties(MESSAGE)
    both = Expression(FILTERS[2])
    cost = nanoseconds(lambda: both.matches(decode_properties(raw)), rounds)
    show("the third of these, properties decoded first", cost - loop)
    table = FilterTable(BloomFilter())
    for number in range(10):
        table.register("T", f"G{number}", FILTERS[2], 1, now_ms=1)
    cost = nanoseconds(lambda: table.bitmap("T", MESSAGE), rounds, CALLS // 10)
    show("the bitmap of a message, ten groups", cost - loop)
    key, bitmap = table.bloom.key("G3", "T"), table.bitmap("T", MESSAGE)
    assert bitmap is not None
    show("asking a bitmap", nanoseconds(lambda: table.bloom.is_hit(key, bitmap), rounds) - loop)
    cost = nanoseconds(lambda: Expression(FILTERS[3]), rounds, 100)
    show("making the fourth", cost - loop)


if __name__ == "__main__":
    main()
