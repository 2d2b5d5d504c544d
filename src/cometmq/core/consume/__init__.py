"""A consumer's decisions about one queue: what is in hand, in which order, how far it may
commit."""
