"""What sources, sink and pipelines share: option names, columns, progress and reports."""
