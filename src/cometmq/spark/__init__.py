"""PySpark data sources, sinks and pipelines on top of `arrow`.

Empty in this release.
"""
