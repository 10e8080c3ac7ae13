"""Code that adapters of several frameworks share."""
