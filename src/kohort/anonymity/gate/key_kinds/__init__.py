"""How a column becomes part of a gate's key, one file each; found by name."""
