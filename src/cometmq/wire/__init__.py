"""The remoting protocol without sockets: framing, commands, headers, bodies, connection state.

Sans-IO: bytes in, commands out; nothing here imports asyncio or socket.
"""
