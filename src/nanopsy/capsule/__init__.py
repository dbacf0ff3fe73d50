"""The portable file of one failing step: its format, the chain of operators in it, and the script made of that. Never imports torch."""
