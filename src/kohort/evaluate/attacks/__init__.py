"""Attacks: each file is one attacker, what he has, and how often he is right beside how often a guess is."""
