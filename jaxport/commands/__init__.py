"""One module a subcommand: add_flags(parser) and run(options) -> exit code. Each calls the package that works."""
