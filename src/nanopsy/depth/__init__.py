"""Monocular depth estimation: metrics, data, scenes, networks and training; what the experiments need and other projects can use.

``metrics`` and ``crops`` need the ``depth`` extra, the rest the ``lab`` extra.
"""
