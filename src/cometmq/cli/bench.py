"""`bench`: its options and work live in the room `bench`, imported when the command runs."""

from cometmq.bench.main import bench_command as bench

__all__ = ["bench"]
