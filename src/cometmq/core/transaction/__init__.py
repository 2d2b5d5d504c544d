"""Open transactions of a broker and what is due for each."""
