"""`python -m bench` in a clone, with whatever CometMQ is installed."""

import sys

import bench.main  # noqa: F401  (`cometmq bench` finds it there)
from cometmq.cli.main import main

main(["bench", *sys.argv[1:]])
