"""The partitioning algorithms, each beside its compiled kernel."""
