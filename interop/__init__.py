"""RocketMQ's own clients and servers on a lead: what proves that ours are right."""
