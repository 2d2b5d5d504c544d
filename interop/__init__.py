"""Drivers of RocketMQ's own clients and servers, with which tests compare ours."""
