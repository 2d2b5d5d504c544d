"""Delay levels: messages wait in SCHEDULE_TOPIC_XXXX until their level's time is over.

Delivery is in order of arrival within a level.
"""
