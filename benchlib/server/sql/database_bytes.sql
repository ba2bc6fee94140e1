-- What the load's data take, which are in a schema of our own, beside the tables of others, or the whole database.
SELECT CASE WHEN current_schema() ~ '{ours}' THEN
    (SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind IN ('r', 'm') AND relnamespace::regnamespace::text = current_schema())
ELSE pg_database_size(current_database()) END::bigint
