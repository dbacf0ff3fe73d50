"""The drawer of reports: one file per format. Stdlib and rich only."""
