"""The parameters that a server runs with: of one that is not ours its provider's defaults.

Source: the documentation's "pg_settings". ``boot_val`` is what PostgreSQL itself would run with; what a
packager, a provider, an operator or a level has made of it has a ``source`` other than ``default``.
"""

from __future__ import annotations

from typing import Any

from benchlib.server.server import Server

_TOLD = [
    "shared_preload_libraries",
    "session_preload_libraries",
    "local_preload_libraries",
    "log_destination",
]
"""Parameters that are texts and say of no host, no folder and no user; of all others only that they are set."""

_SETTINGS = """
SELECT name, CASE WHEN told THEN setting ELSE 'set' END AS setting, unit,
       CASE WHEN told THEN boot_val END AS boot_val, source
FROM (SELECT *, vartype <> 'string' OR (name = ANY(%s) AND setting !~ '[/@]') AS told FROM pg_settings) AS all_of_them
WHERE (told OR source <> 'default') AND source NOT IN ('client', 'session')
  AND category NOT IN ('File Locations', 'Client Connection Defaults / Locale and Formatting')
  -- shown as octal; what a server listens at; what it has counted out from the others; what a transaction has, a text up to 11
  AND name NOT IN ('data_directory_mode', 'log_file_mode', 'unix_socket_permissions', 'port', 'listen_addresses',
                   'unix_socket_directories', 'log_timezone', 'num_os_semaphores', 'shared_memory_size', 'transaction_isolation', 'shared_memory_size_in_huge_pages', 'server_version_num')
ORDER BY name
"""


def parameters(server: Server) -> dict[str, Any]:
    """What the sessions of the load run with, by name: ``setting``, ``unit``, ``boot_val`` and ``source``.

    What the session itself has set is left out, and of texts that may name a host, a folder or a user
    it says ``set``, without a ``boot_val``; those at their default are absent.

    Raises:
        ServerError: the server refused or went away.

    """
    return {row.pop("name"): row for row in server.query(_SETTINGS, parameters=[_TOLD])}
