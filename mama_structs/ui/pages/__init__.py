"""Pages of the local web server. Each module has a function ``list_routes``."""
