"""Plan files: keys by dotted names, defaults, renamed keys, and errors that name the key."""
