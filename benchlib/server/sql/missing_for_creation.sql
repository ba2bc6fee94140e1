-- Why benchlib cannot create its database or schema, each with the GRANT that helps, or null.
WITH others AS (
    SELECT count(*) FROM pg_class AS c JOIN pg_namespace AS n ON n.oid = c.relnamespace
    WHERE c.relkind IN ('r', 'p', 'm', 'f') AND n.nspname !~ %(known)s
      -- without tables of extensions
      AND NOT EXISTS (SELECT FROM pg_depend AS d WHERE d.classid = 'pg_class'::regclass AND d.objid = c.oid AND d.deptype = 'e'))
SELECT reason, help FROM others, pg_roles AS r, LATERAL (VALUES
    ('it is a read-only replica', NULL, pg_is_in_recovery()),
    (format('the role %%I may not create databases (not needed with ''own_schema'')', current_user),
     format('ALTER ROLE %%I CREATEDB', current_user), NOT %(own)s AND NOT (r.rolsuper OR r.rolcreatedb)),
    (format('the database %%I holds %%s other tables: remove ''own_schema'' to use a new database, or set beside: %%1$I',
            current_database(), others.count), NULL,
     %(own)s AND others.count > 0 AND current_database() IS DISTINCT FROM %(beside)s::text),
    (format('the role %%I may not create a schema in the database %%I', current_user, current_database()),
     format('GRANT CREATE ON DATABASE %%I TO %%I', current_database(), current_user),
     %(own)s AND NOT has_database_privilege(current_database(), 'CREATE'))
) AS checks (reason, help, applies)
WHERE r.rolname = current_user AND applies
