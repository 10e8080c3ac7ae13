"""The demo: the same question answered without references and with them, with what each cost."""
