"""Parking: an ordered consumer puts a failing message group aside and brings it back in order.

The parking topic is an ordinary topic.
"""
