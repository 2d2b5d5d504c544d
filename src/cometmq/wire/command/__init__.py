"""The remoting command, its codes, and JSON as Java's brokers and clients write it."""
