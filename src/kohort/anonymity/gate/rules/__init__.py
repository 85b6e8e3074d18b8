"""Gate rules, one file each; found by name."""
