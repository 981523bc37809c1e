"""The web interface: an HTTP API, a live stream and a page for browsers, in one process beside the engine."""
