"""A deployment: the folders, keys and services of a hub and its sites."""
