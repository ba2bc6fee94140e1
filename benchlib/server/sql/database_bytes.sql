-- Size of the load's data: of benchlib's schema, or else of the database.
SELECT CASE WHEN current_schema() ~ '{ours}' THEN
    (SELECT sum(pg_total_relation_size(oid)) FROM pg_class WHERE relkind IN ('r', 'm') AND relnamespace::regnamespace::text = current_schema())
ELSE pg_database_size(current_database()) END::bigint
