"""Byte layouts of RocketMQ: pure functions between bytes and plain values.

Each layout has one module, with a byte ruler above its ``struct``. Callers import the modules, so
that a program pays only for the layouts it uses.
"""

__all__: list[str] = []
