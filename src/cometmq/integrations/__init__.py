"""Other frameworks on top of the client: FastStream, and Celery by a transport for Kombu.

Each folder needs its extra and uses the client's public names only.
"""
