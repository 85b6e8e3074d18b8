"""Learn the domains of undeclared columns: by a secure count, or by noisy counts under a budget."""
