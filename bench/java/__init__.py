"""`--against java`: the same rows beside RocketMQ's Java broker, round by round in turn."""
