"""Sums of which only the total opens, sealed boxes between peers, and identities."""
