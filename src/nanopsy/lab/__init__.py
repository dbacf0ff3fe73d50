"""The paper as commands: demonstrations of each vulnerability, and training experiments (arXiv 2311.03938)."""
