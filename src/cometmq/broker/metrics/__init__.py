"""A broker's metrics for Prometheus, and its health checks over HTTP."""
