"""Load programs behind `cometmq bench`: raw frames, our client, and the echo they are read by."""
