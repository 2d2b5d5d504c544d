"""Bodies of requests and responses: routes, clients, administration, statistics."""
