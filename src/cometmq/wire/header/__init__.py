"""Request and response headers, their fields, and the fast ways of the hottest ones."""
