"""The command line. Every module here with a `register` function adds its commands."""
