-- Parameters by lower-case name: their context, and whether the role may use ALTER SYSTEM.
SELECT lower(name) AS name, context, source, context NOT IN ('user', 'superuser') AS wide, {may} AS may_alter
FROM pg_settings WHERE lower(name) = ANY(%s)
