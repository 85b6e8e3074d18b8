"""Sites that do not quite agree: profiles of their tables, what differs, and the mapping that mends it at home."""
