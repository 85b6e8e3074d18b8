"""One file a published method. Every module here with a METHOD is registered."""
