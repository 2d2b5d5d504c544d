"""Open transactions of a broker, and when each is checked or given up."""
