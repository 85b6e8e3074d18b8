"""The model kinds of this package, one module for each; see `kohort.models.registry`."""
