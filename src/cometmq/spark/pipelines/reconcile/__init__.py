"""The pipeline `reconcile`: two sources compared message by message."""
