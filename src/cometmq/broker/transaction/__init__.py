"""Transactions: half messages, their commit or rollback, and check-back with the producer.

All memory of an open transaction can be derived from the store again.
"""
