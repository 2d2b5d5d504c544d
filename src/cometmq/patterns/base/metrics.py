"""Figures in the text format of Prometheus, as every pattern's status prints them."""

from collections.abc import Mapping

__all__ = ["gauges"]


def gauges(pattern: str, figures: Mapping[str, float]) -> str:
    """A gauge a figure, named ``cometmq_{pattern}_{figure}``."""
    return "".join(
        f"# TYPE cometmq_{pattern}_{name} gauge\ncometmq_{pattern}_{name} {value}\n"
        for name, value in figures.items()
    )
