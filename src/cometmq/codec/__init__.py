"""Byte layouts of RocketMQ: pure functions between bytes and plain values.

No module here does I/O, reads a clock or logs.  Each layout lives in one module, with a byte
ruler above its ``struct``.  Callers import the modules; this file re-exports nothing so that a
program pays only for the layouts it uses.
"""

__all__: list[str] = []
