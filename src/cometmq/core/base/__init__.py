"""What several decisions share: settings by RocketMQ's names, numbers by Java's rules."""
