"""Re-identification risk of a table, and columns that identify people."""
