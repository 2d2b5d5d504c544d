"""Where a controller records its decisions: in etcd, or in a local file."""
