"""Local web pages that show a store; `Session.ui` and the command ``mama-structs ui`` start them."""
