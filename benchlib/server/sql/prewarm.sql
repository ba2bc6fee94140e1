-- Has pg_prewarm read all tables and indexes into shared_buffers.
SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE relkind IN ('r', 'i', 'm', 't') AND relpersistence <> 't'
