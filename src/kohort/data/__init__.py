"""Tables, roles, domains, encodings and splits: everything that happens before a site exists."""
