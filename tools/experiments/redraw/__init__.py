"""Every figure and table of the findings, from the CSV files that lie beside them."""
