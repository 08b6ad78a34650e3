# test-timeout: 400
"""examples/elastic: three runs whose ranks join and leave at random, each replayed."""

import os
import subprocess
import sys

program = os.path.join(os.path.dirname(os.path.abspath(__file__)), "elastic_chaos.py")
sys.exit(subprocess.run([sys.executable, program, "--runs", "3", "--seed", "1"], check=False).returncode)
