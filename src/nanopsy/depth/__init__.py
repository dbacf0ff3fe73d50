"""Monocular depth estimation: what the experiments need and other projects can use. Needs the ``depth`` extra (torchmetrics)."""
