-- The columns of the named relations, with their statistics from pg_stats.
SELECT g.given, c.oid, c.oid::regclass::text AS "table", a.attname AS plain, quote_ident(a.attname) AS name, t.type, t.typcategory AS category,
       c.relkind IN ('r', 'p') AND n.nspname <> 'information_schema' AND n.nspname !~ '^pg_' AS is_table,
       t.typnamespace = 'pg_catalog'::regnamespace OR t.typtype = 'e' AS is_builtin,
       EXISTS (
           SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND i.indkey::text = a.attnum::text
           AND i.indpred IS NULL AND i.indisvalid
       ) AS is_unique,
       -- part of a unique index: not every value may be written
       EXISTS (
           SELECT FROM pg_index AS i WHERE i.indrelid = c.oid AND i.indisunique AND (a.attnum = ANY(i.indkey) OR EXISTS (
               SELECT FROM pg_depend AS p WHERE p.classid = 'pg_class'::regclass AND p.objid = i.indexrelid
               AND p.refclassid = 'pg_class'::regclass AND p.refobjid = c.oid AND p.refobjsubid = a.attnum
           ))
       ) AS is_key,
       coalesce(size.tuples, 0)::bigint AS rows, coalesce(size.is_uncounted, false) AS is_uncounted,
       coalesce(s.null_frac, 0)::float8 AS nulls, coalesce(s.avg_width, 0) AS width,
       -- number of distinct values; negative in pg_stats: a share of the rows
       CASE WHEN s.n_distinct < 0 THEN -s.n_distinct * size.tuples ELSE coalesce(s.n_distinct, 0) END::bigint AS count,
       coalesce(s.most_common_vals::text::text[], '{}') AS common, coalesce(s.most_common_freqs::float8[], '{}') AS frequencies,
       coalesce(s.histogram_bounds::text::text[], '{}') AS bounds
FROM unnest(%(names)s::text[]) AS g(given)
JOIN pg_class AS c ON c.oid = to_regclass(g.given) AND c.relkind IN ('r', 'p', 'v', 'm', 'f')
JOIN pg_namespace AS n ON n.oid = c.relnamespace
JOIN pg_attribute AS a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
CROSS JOIN LATERAL (
    -- the base type of a domain
    SELECT b.typnamespace, b.typtype, b.typcategory,
           format_type(b.oid, CASE WHEN own.typbasetype = 0 THEN a.atttypmod ELSE own.typtypmod END) AS type
    FROM pg_type AS own JOIN pg_type AS b ON b.oid = coalesce(nullif(own.typbasetype, 0), own.oid)
    WHERE own.oid = a.atttypid
) AS t
CROSS JOIN LATERAL (
    -- for a partitioned table the sum of its partitions
    WITH RECURSIVE tree AS (
        SELECT c.oid AS oid
        UNION ALL
        SELECT i.inhrelid FROM tree JOIN pg_inherits AS i ON i.inhparent = tree.oid WHERE c.relkind = 'p'
    )
    SELECT sum(greatest(l.reltuples, 0)::float8) AS tuples,
           bool_or(l.relpages = 0 AND pg_relation_size(l.oid) > 0) AS is_uncounted
    FROM tree JOIN pg_class AS l ON l.oid = tree.oid WHERE l.relkind <> 'p'
) AS size
LEFT JOIN pg_stats AS s
       ON s.schemaname = n.nspname AND s.tablename = c.relname AND s.attname = a.attname AND s.inherited = (c.relkind = 'p')
ORDER BY g.given, c.oid, a.attnum
