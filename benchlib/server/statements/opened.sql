-- Makes the extension's view visible; no row where there is none. Its dates are to be read anywhere.
SELECT ceil(pg_database_size(current_database()) / 16.0 / 1024 / 1024)::int AS scales,
       set_config('search_path', concat_ws(', ', nullif(current_setting('search_path'), ''), quote_ident(n.nspname)), false),
       set_config('DateStyle', 'ISO', false)
FROM pg_extension AS e JOIN pg_namespace AS n ON n.oid = e.extnamespace
WHERE e.extname = 'pg_stat_statements'
