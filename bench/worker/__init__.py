"""The programs that run in processes of their own: load generators, verification, echo."""
