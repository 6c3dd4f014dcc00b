"""From a command line to a run: workdirs, processes, schedulers."""
