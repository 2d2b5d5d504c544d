"""Access control: accounts, what their policies say of a resource, and why."""
