-- Every row belongs to a namespace. A session of an earlier version that is still open cannot write shared rows any more.
DELETE FROM leases WHERE namespace = '';
DELETE FROM changes WHERE namespace = '';
DELETE FROM namespaces WHERE namespace = '';
DO $$
DECLARE name text;
BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = current_schema()
        AND tablename IN ('rows', 'leases', 'changes', 'namespaces') LOOP
        EXECUTE format('ALTER TABLE %I ADD CONSTRAINT %I CHECK (namespace <> '''')', name, name || '_have_namespace');
    END LOOP;
END
$$;
