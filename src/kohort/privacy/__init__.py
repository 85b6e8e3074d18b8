"""Guarantees, policies, the door and the ledger: what leaves a site, and how it is written down."""
