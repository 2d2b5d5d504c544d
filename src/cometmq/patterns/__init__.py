"""What programs do around a broker: handle a message once, send what a transaction has decided.

Each folder is one pattern.  Patterns use the client's public names only, and a database that the
program brings: SQLAlchemy's engines and sessions (extra ``patterns``), or a client of Redis.
"""
