"""Shared parts of the pipelines: following a stream, watching a job, ordered sends, errors."""
