"""`python -m penstock` is the command `penstock`, for where no script directory is on the path."""

import sys

from penstock.cli import main

if __name__ == "__main__":
    sys.exit(main())
