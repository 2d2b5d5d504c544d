"""The `cometmq` command: parse, call the room that does the work, print.

Each command imports its room when it runs, so that `cometmq --help` stays quick.
"""
