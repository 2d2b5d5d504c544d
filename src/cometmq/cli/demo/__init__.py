"""`cometmq demo`: real flights through a cluster of its own, every count checked."""
