"""Dense networks, trained over many sites in one compiled call."""
