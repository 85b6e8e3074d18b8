"""What a run gives back: figures by round, the outcome, and what is said beside it."""
