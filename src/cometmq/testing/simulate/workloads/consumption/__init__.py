"""Kinds of message about who gets what: backlogs that are passed over, priorities, `why`."""
