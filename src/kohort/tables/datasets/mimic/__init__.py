"""The named dataset `mimic3`, loaded when it is asked for: the folder's layout, its reader, and the 714 features."""
