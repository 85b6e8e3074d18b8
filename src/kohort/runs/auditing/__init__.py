"""`kohort audit`: a run is repeated and listened to, and what left its sites is attacked."""
