"""`cometmq pipeline`: the Spark pipelines, a command each."""
