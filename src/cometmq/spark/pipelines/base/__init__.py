"""What the pipelines share: inputs, extents, following a stream, ordered sends."""
