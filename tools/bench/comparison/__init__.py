"""What `families.py` compares: methods and strategies, and their rows, tables and figure."""
