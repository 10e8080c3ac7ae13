-- `add_filter_names` has added a name for each tag, source, outcome, creator and item of extra data of each memory.
-- The planner needs the frequencies of these names, because the name of the creator is in every memory.
ANALYZE mentions;
