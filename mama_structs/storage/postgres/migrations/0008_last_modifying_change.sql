-- The number of the last change that did more than to add memories. It replaces a row for each change.
ALTER TABLE memory_heads ADD COLUMN last_modifying_change bigint NOT NULL DEFAULT 0;
UPDATE memory_heads h SET last_modifying_change = n.change FROM namespaces n WHERE n.namespace = h.namespace;
DROP TABLE touched;
