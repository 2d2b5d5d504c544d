"""What a controller decides about a replica set: ids, master, in-sync replicas."""
