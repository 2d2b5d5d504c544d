"""Producers: choosing a queue, sending, batching, retrying, recalling, request and reply.

Asyncio and synchronous producers share one core.
"""
