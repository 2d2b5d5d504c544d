"""Digests of the full log files, and the tour that reads the files again to find rotten bytes."""
