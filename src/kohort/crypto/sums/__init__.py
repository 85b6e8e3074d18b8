"""Secure sums: one session interface, and the schemes behind it (plain, masks, bfv, ckks)."""
