-- Why benchlib cannot copy a template database, each with the statement that helps, or null.
SELECT reason, help
FROM (SELECT %(template)s::text AS name) AS asked LEFT JOIN pg_database AS d ON d.datname = name,
     LATERAL (SELECT count(*) AS used FROM pg_stat_activity WHERE datname = name AND pid <> pg_backend_pid()) AS sessions,
     LATERAL (VALUES
    (format('the server has no database %%I to copy', name), NULL, d.oid IS NULL),
    (format('the role %%I may not copy the database %%I, which is neither its own nor a template', current_user, name),
     format('ALTER DATABASE %%I IS_TEMPLATE true', name), NOT d.datistemplate AND NOT pg_has_role(d.datdba, 'USAGE')),
    (format('the database %%I cannot be copied while %%s sessions use it: end them, or name a copy that nobody uses', name, used),
     NULL, used > 0 AND name <> current_database()),
    (format('the database %%I cannot be copied while benchlib is connected to it: name another database in the service', name),
     NULL, name = current_database())
) AS checks (reason, help, applies)
WHERE applies
