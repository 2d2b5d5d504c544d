"""A producer's decisions: cutting batches, avoiding slow brokers."""
