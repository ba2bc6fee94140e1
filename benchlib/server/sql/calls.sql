-- Transactions of all databases so far, and the time.
SELECT sum(xact_commit + xact_rollback)::bigint AS calls, extract(epoch FROM clock_timestamp())::float8 AS at_s FROM pg_stat_database
