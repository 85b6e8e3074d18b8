"""The command line. Every module here that has a `register` function adds its commands."""
