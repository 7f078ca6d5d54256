import sys

from jaxport.cli import main

sys.exit(main())
