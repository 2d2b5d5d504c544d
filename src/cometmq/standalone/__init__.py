"""Name server and broker in one process, for the command line, tests and Spark."""

from cometmq.standalone.standalone import Standalone

__all__ = ["Standalone"]
