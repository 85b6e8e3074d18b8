"""The contract suite every method is held to, for methods in other packages too."""
