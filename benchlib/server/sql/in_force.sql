-- Some parameters as they are in force, by their names in lower case, and where they come from.
SELECT lower(name) AS name, setting, unit, source, regexp_replace(sourcefile, '.*/', '') AS file, pending_restart
FROM pg_settings WHERE lower(name) = ANY(%s)
