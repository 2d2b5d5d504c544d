"""The broker's own tables on disk, in the files and the JSON of a Java broker.

Writes are atomic; a file that cannot be read is told with its name.
"""
