"""Which messages a subscription selects: by tags, or by an SQL92 expression with Bloom filters."""
