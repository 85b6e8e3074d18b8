"""Federated rounds: the training loop, aggregation, server optimizers, phases, sums of updates."""
