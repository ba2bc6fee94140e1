-- Settings that decide on plans, where they differ from the default.
SELECT name, current_setting(name) AS value
FROM pg_settings
WHERE (name ~ '^(enable_|geqo|jit|from_collapse|join_collapse|plan_cache|constraint_exclusion|cursor_tuple)' OR name ~ '_cost$'
       OR name IN ('work_mem', 'hash_mem_multiplier', 'effective_cache_size', 'default_statistics_target', 'search_path'))
AND source NOT IN ('default', 'client', 'session', 'override') AND setting IS DISTINCT FROM boot_val
ORDER BY name
