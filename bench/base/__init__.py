"""What every row is made of: loads, frames, readings of the machine, server processes."""
