"""What is kept: requests, cached records and their provenance, and the model that a record is of."""
