"""The broker's own tables on disk, in the files and the JSON of a Java broker.

Writes are atomic; an error names the file that cannot be read.
"""
