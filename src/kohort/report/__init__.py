"""One self-contained page that shows what a run learned and what it gave away."""
