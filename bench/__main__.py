"""`python -m bench` in a clone, with the installed CometMQ."""

import sys

import bench.main  # noqa: F401  (`cometmq bench` finds it there)
from cometmq.cli.main import main

main(["bench", *sys.argv[1:]])
