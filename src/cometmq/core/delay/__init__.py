"""Delay levels and when a message of each is due."""
