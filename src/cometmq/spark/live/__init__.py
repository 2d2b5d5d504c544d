"""The data source and sink `cometmq`: a running cluster, in batch and streaming."""
