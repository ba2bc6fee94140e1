-- Why benchlib cannot run on a database in use, with the GRANT that helps.
SELECT format('the role %%I may not see the activity of other sessions, which the brakes need', current_user) AS reason,
       format('GRANT pg_read_all_stats TO %%I', current_user) AS help
WHERE NOT pg_has_role('pg_read_all_stats', 'USAGE')
