"""(k, k^m)-anonymity for rows that hold sets of items."""
