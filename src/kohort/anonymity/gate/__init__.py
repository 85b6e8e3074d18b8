"""The gate: decides row by row what a site may share."""
