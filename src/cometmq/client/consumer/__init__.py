"""Push and pull consumers, asyncio and synchronous.

`group` keeps a consumer's membership; the modules here decide what happens to its messages.
"""
