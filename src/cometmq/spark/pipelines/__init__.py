"""The jobs behind `cometmq pipeline NAME`, as functions from DataFrame to DataFrame.

Job: a home for the pipelines' modules; it imports none of them.
"""
