# test-timeout: 900
# test-takes: 60
"""A minute of what scripts/chaos does."""

from chaos import *

sys.exit(0 if chaos(int(os.environ.get("TRIREME_TEST_SEED", random.SystemRandom().randrange(10**6)))) else 1)
