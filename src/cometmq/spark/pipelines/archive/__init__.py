"""The pipeline `archive`: topics into Parquet with a manifest, verified and compacted."""
