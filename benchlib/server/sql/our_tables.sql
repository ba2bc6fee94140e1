-- The tables and materialised views in the schema that is ours.
SELECT oid::regclass::text AS name FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'm')
