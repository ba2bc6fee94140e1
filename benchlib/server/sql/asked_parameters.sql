-- Some parameters, by their names in lower case: who may set each, and whether our role may for everybody.
SELECT lower(name) AS name, context, source, context NOT IN ('user', 'superuser') AS wide, {may} AS may_alter
FROM pg_settings WHERE lower(name) = ANY(%s)
