"""Cryptography: secure sums, identities, sealed messages."""
