-- What ALTER SYSTEM has set of a parameter, by its name in lower case, as pg_file_settings or pg_settings tells it.
SELECT setting FROM {view} WHERE lower(name) = %s AND sourcefile LIKE '%%postgresql.auto.conf'
