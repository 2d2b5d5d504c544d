"""Shared by all commands: options, values, output, streams, exit codes, questions, completion."""
