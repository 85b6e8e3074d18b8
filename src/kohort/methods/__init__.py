"""One file or folder per published method. Every module here that has a METHOD is registered."""
