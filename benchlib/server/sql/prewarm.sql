-- Reads all tables and indexes into shared_buffers with pg_prewarm.
SELECT sum(pg_prewarm(oid)) FROM pg_class WHERE relkind IN ('r', 'i', 'm', 't') AND relpersistence <> 't'
