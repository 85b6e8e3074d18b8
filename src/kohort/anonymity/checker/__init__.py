"""The checker: measures k, l, t and k^m on a finished table. It shares no code with the makers."""
