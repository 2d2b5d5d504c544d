"""The web console: pages about a cluster, made on the server from what the admin client is told.

A page needs no script and asks no other host for anything.  `ConsoleServer` serves them.
"""
