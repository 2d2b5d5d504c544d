"""The remoting protocol without sockets: commands, headers, frames, connections, bodies.

Bytes come in and commands come out; nothing here imports asyncio or socket. The folders, bottom to
top: `command`, `header`, `frame`, `body`, `extensions`.
"""
