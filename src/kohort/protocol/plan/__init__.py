"""The plan as hub and sites read it: its sections, its phases, and what is approved of it."""
