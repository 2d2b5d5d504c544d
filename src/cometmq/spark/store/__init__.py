"""The data source `cometmq-store`: a store directory, read without a broker."""
