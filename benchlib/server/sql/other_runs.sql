-- The advisory locks of other runs, in all databases of the server.
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = {runs}::oid AND objid <> %s::int::oid
