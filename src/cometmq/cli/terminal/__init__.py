"""What all commands share: options, values, output, streams, exit codes, confirmation,
completion."""
