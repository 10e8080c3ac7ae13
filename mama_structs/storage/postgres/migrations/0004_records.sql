-- Memories have a fifth type, records, of which each namespace counts its own.
ALTER TABLE memory_heads ALTER COLUMN types SET DEFAULT '{0,0,0,0,0}';
UPDATE memory_heads SET types = types || 0::bigint;
