-- Free connections, of the server and of a role with a limit. benchlib's own are omitted: ended ones may still be listed.
SELECT least(current_setting('max_connections')::int - current_setting('superuser_reserved_connections')::int
             - coalesce(current_setting('reserved_connections', true), '0')::int - count(*)::int,
             (SELECT rolconnlimit FROM pg_roles WHERE rolname = current_user AND rolconnlimit >= 0 AND NOT rolsuper)
             - count(*) FILTER (WHERE usename = current_user)::int) AS free
FROM pg_stat_activity
-- backend_type of other roles may be hidden; every client session has a database
WHERE datid IS NOT NULL AND coalesce(backend_type, 'client backend') = 'client backend'
  AND pid <> pg_backend_pid() AND NOT (usename = current_user AND application_name = 'benchlib')
