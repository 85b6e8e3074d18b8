"""Differentially private training of dense networks."""
