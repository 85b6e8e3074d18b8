"""Anonymous tables of ordinary columns: k-anonymity, l-diversity and t-closeness."""
