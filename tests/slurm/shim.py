"""A wrapper as older Mooncake wheels had it: starts the program as a child, waits, and passes no signal on."""

import subprocess
import sys

sys.exit(subprocess.call(sys.argv[1:]))
