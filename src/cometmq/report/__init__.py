"""Reports: one HTML file with an answer, charts, tables and the conditions of the run."""
