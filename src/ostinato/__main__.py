"""`python -m ostinato` is the command line."""

from __future__ import annotations

from ostinato.cli import main

if __name__ == "__main__":
    main()
