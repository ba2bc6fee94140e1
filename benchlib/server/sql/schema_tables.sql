-- The tables and materialised views of benchlib's schema.
SELECT oid::regclass::text AS name FROM pg_class
WHERE relnamespace = current_schema()::regnamespace AND relkind IN ('r', 'p', 'm')
