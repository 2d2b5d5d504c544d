"""The pipeline `cdc`: change events become a table."""
