-- Current values of parameters and their source, by lower-case name.
SELECT lower(name) AS name, setting, unit, source, regexp_replace(sourcefile, '.*/', '') AS file, pending_restart
FROM pg_settings WHERE lower(name) = ANY(%s)
