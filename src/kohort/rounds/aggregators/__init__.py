"""How a round's updates become one: mean, median, trimmed mean, Krum, clipping, matched averaging."""
