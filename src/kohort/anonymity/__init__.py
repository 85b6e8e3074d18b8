"""Makers of anonymous tables, and the checker that judges them."""
