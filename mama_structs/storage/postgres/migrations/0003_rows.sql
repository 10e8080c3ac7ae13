-- Sealed bytes under keys: conversations, their refs and texts. By key alone they are listed across namespaces.
CREATE TABLE rows (
    namespace text COLLATE "C" NOT NULL,
    key text COLLATE "C" NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (namespace, key)
);
CREATE INDEX rows_by_key ON rows (key);

-- Which names are in use, by whom and how long: who cannot renew a lease has lost it. Times are the server's own.
CREATE TABLE leases (
    namespace text COLLATE "C" NOT NULL,
    name text COLLATE "C" NOT NULL,
    holder uuid NOT NULL,
    expires timestamptz NOT NULL,
    PRIMARY KEY (namespace, name)
);
CREATE INDEX leases_by_holder ON leases (holder);

-- Whoever does not own the tables sees one namespace at a time, but where a transaction says that it is about several:
-- to list them, and for the rows that several share. It keeps a statement that forgot the namespace from others' rows.
-- Who may see which, an administrator says by further policies, for a role each. The owner is not bound: pg_dump would
-- refuse.
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema() AND tablename <> 'migrations' LOOP
        EXECUTE format('ALTER TABLE %I ENABLE ROW LEVEL SECURITY', name);
        EXECUTE format('CREATE POLICY own_namespace ON %I USING (namespace = current_setting(''app.namespace'', true) '
                       'OR current_setting(''app.across'', true) = ''on'')', name);
    END LOOP;
END
$$;

-- No plan goes by these columns, and the planner's statistics would hold values of them, where no DELETE reaches. Those
-- of keys, topics and terms it needs: forgetting has them made anew.
DO $$
DECLARE name text; part text;
BEGIN
    FOR name, part IN SELECT table_name, column_name FROM information_schema.columns
        WHERE table_schema = current_schema()
        AND (udt_name IN ('bytea', '_text', 'vector', 'halfvec') OR column_name = 'text') LOOP
        EXECUTE format('ALTER TABLE %I ALTER COLUMN %I SET STATISTICS 0', name, part);
    END LOOP;
END
$$;
