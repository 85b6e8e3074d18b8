"""Tables: roles and schema, domains, encoders, hierarchies, reading and writing, splits into sites."""
