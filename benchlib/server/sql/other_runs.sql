-- The sessions by which other runs are known on a server, in whichever database of it they are.
SELECT pid FROM pg_locks WHERE locktype = 'advisory' AND objsubid = 2 AND classid = {runs}::oid AND objid <> %s::int::oid
