"""python -m pellucid"""

import sys

from pellucid.cli import main

if __name__ == "__main__":
    sys.exit(main())
