"""Runs: from a plan file to a finished folder."""
