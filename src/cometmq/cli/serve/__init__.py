"""Commands that run a server: `up`, `broker`, `namesrv`, `delay-gateway`."""
