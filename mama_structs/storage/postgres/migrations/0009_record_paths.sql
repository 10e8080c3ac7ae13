-- `add_path_names` has added a name for the path of each record with text, by which listings are ordered.
ANALYZE mentions;
