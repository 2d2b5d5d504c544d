"""Web pages over the admin client.

Empty in this release.
"""
