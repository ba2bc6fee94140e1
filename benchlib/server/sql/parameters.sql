SELECT name, CASE WHEN kept THEN setting ELSE 'set' END AS setting, unit,
       CASE WHEN kept THEN boot_val END AS boot_val, source
-- text parameters may name hosts, directories or users: except for these, only 'set' is reported
FROM (SELECT *, vartype <> 'string' OR (name ~ '^((shared|session|local)_preload_libraries|log_destination)$' AND setting !~ '[/@]') AS kept
      FROM pg_settings) AS all_of_them
WHERE (kept OR source <> 'default') AND source <> 'session'
  AND category NOT IN ('File Locations', 'Client Connection Defaults / Locale and Formatting')
  -- of our sessions; octal; addresses; derived values; of the transaction (a text up to 11)
  AND name NOT IN ('application_name', 'search_path', 'data_directory_mode', 'log_file_mode', 'unix_socket_permissions', 'port', 'listen_addresses',
                   'unix_socket_directories', 'log_timezone', 'num_os_semaphores', 'shared_memory_size', 'transaction_isolation', 'shared_memory_size_in_huge_pages', 'server_version_num')
ORDER BY name
