"""Decides on a message whose handler failed: another try after a delay, or a dead letter."""
