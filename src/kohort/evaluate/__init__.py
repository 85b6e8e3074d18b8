"""How good a model is, and what an attacker gets out of it."""
