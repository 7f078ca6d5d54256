import sys

try:
    from jaxport.cli import main
except KeyboardInterrupt:
    sys.exit(130)

sys.exit(main())
