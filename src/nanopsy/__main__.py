"""``python -m nanopsy``."""

from nanopsy.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
