"""Compiled loops of the anonymisers: plain arrays in, plain arrays out. Imported only when used."""
