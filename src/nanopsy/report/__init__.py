"""The drawer of reports: one file per format. Stdlib, rich and jinja2 only."""
