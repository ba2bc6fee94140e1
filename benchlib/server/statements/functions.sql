-- The names that are functions, but not built-in ones.
SELECT DISTINCT p.proname FROM pg_proc AS p
WHERE p.proname = ANY(%(names)s::text[]) AND NOT EXISTS (
    SELECT FROM pg_proc AS b WHERE b.proname = p.proname AND b.pronamespace = 'pg_catalog'::regnamespace
)
