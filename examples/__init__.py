"""Example trainers. Each one runs as it is: ``python -m portaloader.examples.demo_torch``."""
