"""The pipeline `backlog`: how far groups are behind, and which queues and keys are hot."""
