"""Run the ``mama-structs`` command line as ``python -m mama_structs``."""

import sys

from mama_structs.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
