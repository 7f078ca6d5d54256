import sys

try:
    from jaxport.cli import entry
except KeyboardInterrupt:
    sys.exit(130)

entry()
