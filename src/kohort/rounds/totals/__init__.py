"""Training over totals: the hub opens one total per round and announces it, and sites take the step themselves."""
