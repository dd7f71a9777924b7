"""One module per subcommand of `pagoda`."""
