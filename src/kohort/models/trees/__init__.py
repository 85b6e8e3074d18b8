"""Boosted forests from sums of gradients over bins: one learner that hub and sites drive alike."""
