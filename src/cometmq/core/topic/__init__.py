"""Topics of a broker, routes of a name server, and the choice of a queue for a message."""
