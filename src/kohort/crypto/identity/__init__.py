"""Who is who: keys, rosters, certificates."""
