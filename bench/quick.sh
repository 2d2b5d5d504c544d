#!/bin/sh
# One round of one second for each row: does it run, is everything read back.
set -eu
exec "${PYTHON:-.venv/bin/python}" -m cometmq bench --quick "$@"
