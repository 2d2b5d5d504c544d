"""Shared by every part of the store: the disk interface, settings, results, checkpoint files.

Of RocketMQ's file formats, only the checkpoint's is known here.
"""
