"""Transport: signed messages between a hub and real sites, Flower as their carrier, deployments."""
