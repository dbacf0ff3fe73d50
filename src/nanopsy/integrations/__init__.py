"""Callbacks for training frameworks, for when a training is not started with ``nanopsy run``. One file for each framework."""
