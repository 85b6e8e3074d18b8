"""Re-runs of published tables and figures, ours beside theirs."""
