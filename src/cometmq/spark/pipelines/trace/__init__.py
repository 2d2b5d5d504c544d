"""The pipeline `trace`: what happened to each message, from trace records."""
