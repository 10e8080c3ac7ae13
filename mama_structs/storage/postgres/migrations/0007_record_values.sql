-- `add_value_names` has added a name for each indexed value of each record with text.
ANALYZE mentions;
