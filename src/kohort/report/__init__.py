"""What people read about a run: an HTML report with its JSON twin, and the model card."""
