"""Pure functions from records and thread states to the rows of the views."""
