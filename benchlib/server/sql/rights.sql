-- The role's rights; pg_checkpoint exists since version 15.
SELECT quote_ident(current_user) AS role, reads_conf,
       rolsuper OR 'pg_checkpoint' = ANY(roles) AS may_checkpoint, rolsuper OR 'pg_read_server_files' = ANY(roles)
         AND has_function_privilege('pg_read_file(text, bigint, bigint, boolean)', 'EXECUTE') AS may_read_files
FROM pg_roles, (SELECT array_agg(rolname::text) AS roles FROM pg_roles WHERE pg_has_role(oid, 'USAGE')) AS ours,
     (SELECT has_function_privilege('pg_show_all_file_settings()', 'EXECUTE')
             AND has_table_privilege('pg_file_settings', 'SELECT') AS reads_conf) AS conf
WHERE rolname = current_user
