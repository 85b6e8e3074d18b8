"""Named datasets: where they come from, how they are read, what is publicly known about their columns."""
