"""Request processors, long-poll parking, wiring, configuration and process entry of the broker."""
