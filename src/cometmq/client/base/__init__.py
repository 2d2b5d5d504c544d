"""What every client object shares: arguments, connections, routes, heartbeats and calls to brokers.

Nothing here knows whether the client produces or consumes.
"""
