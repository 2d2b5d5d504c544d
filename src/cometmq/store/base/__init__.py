"""What every part of the store shares: the disk interface, settings, results, checkpoint files.

Nothing here knows a file format of RocketMQ but the checkpoint's.
"""
