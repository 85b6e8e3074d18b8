"""Anonymity: makers of anonymous tables, the checker that judges them, gates and re-identification risk."""
