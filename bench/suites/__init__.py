"""The suites: rows of raw frames and of our client, operations, scale, kinds; their report."""
