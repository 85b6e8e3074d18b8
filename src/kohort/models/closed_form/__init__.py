"""One-layer networks solved from sums over rows."""
