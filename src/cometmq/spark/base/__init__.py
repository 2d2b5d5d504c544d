"""Shared parts of sources, sink and pipelines: option names, columns, progress, reports."""
