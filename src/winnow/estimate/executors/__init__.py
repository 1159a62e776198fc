"""Executors of items of work: this process, processes of this machine, a Ray cluster."""
