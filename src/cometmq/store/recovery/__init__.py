"""Recovery: makes log, queues and index of a store directory agree when it is opened.

Each rule names the crash or the damage that it is for.
"""
