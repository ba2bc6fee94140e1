-- Terminates the sessions of a database of benchlib, and a CREATE DATABASE whose client is gone.
SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> pg_backend_pid() AND (
    datname = %(name)s::text AND pg_has_role(usesysid, 'MEMBER')
    OR usename = current_user AND state = 'active' AND query LIKE 'CREATE DATABASE "' || %(name)s::text || '"%%'
)
