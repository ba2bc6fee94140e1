-- A parameter's value set by ALTER SYSTEM, by lower-case name, from pg_file_settings or pg_settings.
SELECT setting FROM {view} WHERE lower(name) = %s AND sourcefile LIKE '%%postgresql.auto.conf'
