"""Record batches from a store directory or a live topic, with numpy and pyarrow.

It knows nothing of Spark. Empty in this release.
"""
