"""The command line: one module per group of commands. They parse, call and print."""
