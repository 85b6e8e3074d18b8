"""What all studies share: tables, charts, sweeps of runs."""
