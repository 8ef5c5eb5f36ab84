"""What every experiment trains: the model, its text, the methods, the loop and its logs."""
