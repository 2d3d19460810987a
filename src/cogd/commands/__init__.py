"""The command line's commands, one file per subject; torch is imported inside of them, when they run."""
