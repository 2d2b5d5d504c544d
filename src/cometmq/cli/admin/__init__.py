"""Commands about topics, groups, dead letters, parked messages and store directories."""
