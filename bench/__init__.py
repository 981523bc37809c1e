"""What is promised about speed and memory, measured beside its peers: `scripts/bench`, or `python -m bench`."""
