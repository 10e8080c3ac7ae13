"""What each command of ``mama-structs`` does; `mama_structs.commands.table` lists them."""
