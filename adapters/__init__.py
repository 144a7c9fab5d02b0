"""One file for each framework: each hands DALI's batches to it, and is the only place where it is imported."""
