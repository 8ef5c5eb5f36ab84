"""By gradient: strategies and helpers that make each example's gradient itself, or weigh it."""
