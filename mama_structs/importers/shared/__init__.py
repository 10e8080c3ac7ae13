"""Code that importers of several sources share."""
