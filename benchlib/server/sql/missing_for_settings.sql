-- Why the role cannot apply settings, each with the GRANT that helps, or null; and which are the whole server's.
WITH given AS (
    SELECT g.name, g.value, place, p.name IS NULL AS unknown, context, p.source, context NOT IN ('user', 'superuser') AS wide,
           NOT %(in_place)s AND context NOT IN ('user', 'superuser', 'postmaster', 'internal') AS alterable, {may_alter} AS may_alter
    FROM unnest(%(names)s::text[], %(values)s::text[]) WITH ORDINALITY AS g (name, value, place)
    LEFT JOIN pg_settings AS p ON lower(p.name) = lower(g.name)),
ours AS (SELECT array_agg(rolname::text) AS roles FROM pg_roles WHERE pg_has_role(oid, 'USAGE'))
SELECT name, value, wide, reason, help FROM ours, given LEFT JOIN LATERAL (VALUES
    (format('%%s = %%s: the server has no such parameter', name, value), NULL, unknown),
    (format('%%s = %%s: needs a restart of the server; benchlib does not restart external servers', name, value), NULL,
     context = 'postmaster'),
    (format('%%s = %%s: is fixed when the server is built or initialised', name, value), NULL, context = 'internal'),
    (format('%%s = %%s: the tables are in a schema of benchlib', name, value), NULL, %(own)s AND lower(name) = 'search_path'),
    (format('%%s applies to the whole server: in place, only settings of a session can differ', name), NULL,
     %(in_place)s AND context NOT IN ('user', 'superuser', 'postmaster', 'internal')),
    (format('%%s: every session is read-only in place', name), NULL, %(in_place)s AND lower(name) LIKE '%%transaction_read_only'),
    (format('%%s applies to the whole server: set server_wide: true in the level''s target to change it for all sessions', name),
     NULL, alterable AND NOT %(server_wide)s),
    (format('the role %%I may not ALTER SYSTEM %%s{before_15}', current_user, name),
     format({grant}, name, current_user), alterable AND NOT may_alter),
    (format('the role %%I may not have the server reload its settings', current_user),
     format('GRANT EXECUTE ON FUNCTION pg_reload_conf() TO %%I', current_user),
     alterable AND NOT has_function_privilege('pg_reload_conf()', 'EXECUTE')),
    (format('the role %%I may not see the values that ALTER SYSTEM would replace', current_user),
     format('GRANT pg_read_all_settings TO %%I', current_user),
     alterable AND given.source <> 'default' AND NOT 'pg_read_all_settings' = ANY(roles) AND NOT (
       has_function_privilege('pg_show_all_file_settings()', 'EXECUTE') AND has_table_privilege('pg_file_settings', 'SELECT')))
) AS checks (reason, help, applies) ON applies
ORDER BY place
