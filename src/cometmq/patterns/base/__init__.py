"""What the patterns share: the clock, SQL statements of several dialects, flows of two kinds."""
