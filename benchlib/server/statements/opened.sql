-- Puts the extension's schema on the search_path and sets ISO dates; no row without the extension.
SELECT ceil(pg_database_size(current_database()) / 16.0 / 1024 / 1024)::int AS scales,
       set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident(n.nspname)), false),
       set_config('DateStyle', 'ISO', false)
FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'
