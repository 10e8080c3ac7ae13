"""Records of hosts: the record store and its plans."""
