"""Route registration and lookup, wiring, configuration and process entry of the name server."""
