"""A run for others to read: evidence records, a Five Safes RO-Crate, a model card, an annex for an assessment.

Guarantee: exports are made of counts, measures, names of columns, tasks and sites' aggregates that the ledger lists;
no export reads a table, and none holds the value of a cell.
"""
