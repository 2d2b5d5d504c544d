"""The meter of a handler: buckets, quantiles and counts."""

import threading

import pytest

from cometmq.app.stats import HandlerMeter, HandlerStats


@pytest.mark.parametrize("latency_ns", [1, 1_023, 1_024, 9_999, 16_384, 10**6, 12345678, 10**10])
def test_a_quantile_is_an_eighth_too_high_at_most(latency_ns: int) -> None:
    """Never too low; a bucket is 128 ns wide at least."""
    meter = HandlerMeter()
    meter.record(1, latency_ns, 0)
    meter.record(1, 60 * 10**9, 0)
    quantile_ns = meter.quantile_ms(0.5) * 1e6
    assert latency_ns <= quantile_ns <= max(latency_ns * 1.126, 128 * 9)


def test_quantiles_of_many() -> None:
    """Of latencies from 1 to 1,000 ms: the half and the last hundredth."""
    meter = HandlerMeter()
    assert meter.quantile_ms(0.5) == 0.0
    for milliseconds in range(1, 1_001):
        meter.record(1, milliseconds * 10**6, 0)
    assert 500 <= meter.quantile_ms(0.5) <= 563
    assert 990 <= meter.quantile_ms(0.99) <= 1_114
    assert 1_000 <= meter.quantile_ms(1.0) <= 1_126
    # What takes longer than a day and a half shares the last bucket.
    meter.record(1, 10**17, 0)
    assert meter.quantile_ms(1.0) > 36 * 3_600_000


def test_threads_lose_no_count() -> None:
    """Plain handlers count from their threads."""
    meter = HandlerMeter()

    def work() -> None:
        for _ in range(2_000):
            with meter.lock:
                meter.in_work += 1
            with meter.lock:
                meter.record(1, 1_000, 1)
                meter.failed(1, 1, 0)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stats = meter.snapshot("f", "g", "t", 5)
    assert isinstance(stats, HandlerStats)
    assert (stats.messages, stats.retries, stats.failures, stats.dead_letters) == (8_000,) * 4
    assert (stats.in_work, stats.lag, stats.schema_errors) == (0, 5, 0)
