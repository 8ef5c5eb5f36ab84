"""What makes `fixtures/`: modules as JAX writes them, with inputs, references and verdicts."""
