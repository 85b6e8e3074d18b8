"""Models: what comes out of a run. Kinds are registered; each predicts, saves, loads and describes itself."""
