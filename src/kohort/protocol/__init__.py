"""The protocol: requests, sites, tasks, replies, and the engine that drives a method."""
