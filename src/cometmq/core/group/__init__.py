"""Consumer groups: settings, members, offsets, queue locks, allocation of queues."""
