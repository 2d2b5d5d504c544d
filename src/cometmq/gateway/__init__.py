"""The delay gateway: exact timers for a RocketMQ cluster that has delay levels only."""
