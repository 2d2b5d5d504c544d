"""The shipped test kit: in-process cluster, virtual clock, fault injection, simulator."""
