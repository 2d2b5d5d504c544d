#!/bin/sh
# Every row with medians of five rounds; text and JSON go into a folder (default: bench/out).
set -eu
folder=${1:-bench/out}
python=${PYTHON:-.venv/bin/python}
mkdir -p "$folder"
"$python" -m cometmq bench --suite all --rounds 5 --json "$folder/report.json" | tee "$folder/report.txt"
