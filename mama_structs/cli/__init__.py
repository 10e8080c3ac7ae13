"""The ``mama-structs`` commands; `mama_structs.cli.command_table` lists them."""
