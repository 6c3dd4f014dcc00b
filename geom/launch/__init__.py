"""From a command line to a run."""
