-- Terminates sessions with a lock in a schema of benchlib: a killed load may continue for hours.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity
WHERE datname = current_database() AND usename = current_user AND pid <> pg_backend_pid() AND pid IN (
    -- uncommitted tables are invisible in pg_class, but their schema is locked
    SELECT l.pid FROM pg_locks AS l LEFT JOIN pg_class AS c ON c.oid = l.relation JOIN pg_namespace AS n
        ON n.oid = c.relnamespace OR l.classid = 'pg_namespace'::regclass AND l.objid = n.oid
    WHERE n.nspname = %(name)s)
