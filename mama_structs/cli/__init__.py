"""Implementation of the ``mama-structs`` commands; `mama_structs.cli.command_table` lists them."""
