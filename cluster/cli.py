"""The `pagoda` command: finds the subcommand and hands the arguments on."""
