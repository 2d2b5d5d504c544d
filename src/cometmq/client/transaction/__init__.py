"""Transactional producers, with asyncio and without.

A message is delivered if and only if the local transaction commits.
"""
