"""Name server and broker in one process, for the command line, the test kit and Spark.

It wires and decides nothing.
"""
