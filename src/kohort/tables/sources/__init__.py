"""Tables that are not one file: databases by URI, and folders of OMOP CDM tables."""
