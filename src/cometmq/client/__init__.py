"""Producer, push and pull consumers, admin: asyncio first, a synchronous face beside it.

Imports neither numpy nor the broker nor the store, so that it starts light.
"""
