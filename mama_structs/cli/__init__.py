"""What each command of ``mama-structs`` does; `mama_structs.cli.command_table` lists them."""
