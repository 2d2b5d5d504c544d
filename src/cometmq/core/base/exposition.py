"""Metrics as text for Prometheus: families of samples, and histograms that count themselves.

Format: Prometheus text exposition 0.0.4.  A family has at most so many samples as its page allows;
what is left out is counted, so that a page says that it is not whole.
"""

import re
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Final

from cometmq.errors import ConfigError

__all__ = ["CONTENT_TYPE", "Histogram", "MetricsText", "own_labels"]

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_LABEL: Final = re.compile(r"([a-zA-Z_][a-zA-Z0-9_]*):([^,]*)\Z")
_ESCAPES: Final = str.maketrans({"\\": "\\\\", "\n": "\\n", '"': '\\"'})


class Histogram:
    """Counts values by the smallest bound that is not below them; bounds ascend."""

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float, count: int = 1) -> None:
        """Count a value, as often as it came."""
        self.counts[bisect_left(self.bounds, value)] += count
        self.total += value * count

    def add_counts(self, counts: Iterable[int], total: float) -> None:
        """Add what was counted by the same bounds elsewhere."""
        self.counts = [own + other for own, other in zip(self.counts, counts, strict=True)]
        self.total += total


class MetricsText:
    """A page of metrics under construction.

    Args:
        labels: every sample gets them.
        samples_max: the most samples of one family.
    """

    def __init__(self, labels: Mapping[str, str], samples_max: int) -> None:
        self._labels = _text(labels)
        self._samples_max = samples_max
        self._lines: list[str] = []
        self._surplus = 0

    def family(self, name: str, kind: str, help_text: str) -> "_Family":
        """Begin a family: ``kind`` is ``counter``, ``gauge`` or ``histogram``."""
        self._lines.append(f"# HELP {name} {help_text}\n# TYPE {name} {kind}\n")
        return _Family(self, name)

    def value(
        self, name: str, kind: str, help_text: str, value: float, labels: Mapping[str, str] = {}
    ) -> None:
        """Write a family with one sample."""
        self.family(name, kind, help_text).add(value, labels)

    def histogram(self, name: str, help_text: str, histogram: Histogram) -> None:
        """Write a histogram without labels of its own."""
        self.family(name, "histogram", help_text).add_histogram(histogram, {})

    def encode(self) -> bytes:
        """Return the page, with the number of samples that were left out."""
        self.value(
            "cometmq_metrics_left_out",
            "gauge",
            "Samples that this page does not have because a family has too many.",
            self._surplus,
        )
        return "".join(self._lines).encode()


class _Family:
    def __init__(self, page: MetricsText, name: str) -> None:
        self._page = page
        self._name = name
        self._room = page._samples_max

    def add(self, value: float, labels: Mapping[str, str] = {}, *, suffix: str = "") -> None:
        """Write a sample."""
        page = self._page
        if self._room <= 0:
            page._surplus += 1
            return
        self._room -= 1
        own = _text(labels)
        both = f"{page._labels},{own}" if own and page._labels else own or page._labels
        page._lines.append(f"{self._name}{suffix}{{{both}}} {_number(value)}\n")

    def add_histogram(self, histogram: Histogram, labels: Mapping[str, str]) -> None:
        """Write the samples of a histogram."""
        total = 0
        for bound, count in zip(
            (*map(_number, histogram.bounds), "+Inf"), histogram.counts, strict=True
        ):
            total += count
            self.add(total, {**labels, "le": bound}, suffix="_bucket")
        self.add(histogram.total, labels, suffix="_sum")
        self.add(total, labels, suffix="_count")


def _text(labels: Mapping[str, str]) -> str:
    return ",".join(f'{name}="{value.translate(_ESCAPES)}"' for name, value in labels.items())


def _number(value: float) -> str:
    return str(value) if isinstance(value, int) else f"{value:.10g}"


def own_labels(text: str) -> dict[str, str]:
    """Read ``metricsLabel``: labels that every sample gets.

    Raises:
        ConfigError: it is not ``name:value,name:value``.
    """
    labels: dict[str, str] = {}
    for item in filter(None, text.split(",")):
        match = _LABEL.match(item.strip())
        if match is None:
            raise ConfigError(f"metricsLabel={text} has {item!r}; write name:value,name:value")
        labels[match[1]] = match[2]
    return labels
