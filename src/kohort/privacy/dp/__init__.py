"""Differential privacy: events, accountants, budgets and the cost of choosing among runs."""
