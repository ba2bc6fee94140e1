-- The tables with those that a dump of them needs, and the first object (or schema) that pg_dump --table leaves out.
WITH RECURSIVE tree AS (
    SELECT unnest(%(oids)s::oid[]) AS oid
    UNION
    SELECT l.other
    FROM tree JOIN (
        SELECT inhparent AS oid, inhrelid AS other FROM pg_inherits
        UNION ALL SELECT inhrelid, inhparent FROM pg_inherits
        UNION ALL SELECT conrelid, confrelid FROM pg_constraint WHERE contype = 'f'
    ) AS l USING (oid)
), parts AS (
    SELECT 'pg_class'::regclass::oid AS classid, oid FROM tree
    UNION ALL SELECT 'pg_class'::regclass, indexrelid FROM tree JOIN pg_index ON indrelid = oid
    UNION ALL SELECT 'pg_attrdef'::regclass, d.oid FROM tree JOIN pg_attrdef AS d ON adrelid = tree.oid
    UNION ALL SELECT 'pg_constraint'::regclass, c.oid FROM tree JOIN pg_constraint AS c ON conrelid = tree.oid
    UNION ALL SELECT 'pg_trigger'::regclass, t.oid FROM tree JOIN pg_trigger AS t ON tgrelid = tree.oid AND NOT tgisinternal
)
SELECT (SELECT array_agg(oid::regclass::text ORDER BY oid) FROM tree) AS tables, (
    SELECT pg_describe_object(d.refclassid, d.refobjid, 0)
    FROM parts AS p JOIN pg_depend AS d ON d.classid = p.classid AND d.objid = p.oid
    WHERE d.refclassid IN (
        'pg_proc'::regclass, 'pg_type'::regclass, 'pg_operator'::regclass, 'pg_opclass'::regclass, 'pg_collation'::regclass,
        'pg_namespace'::regclass, 'pg_class'::regclass
    ) AND (d.refclassid, d.refobjid) <> ('pg_namespace'::regclass, 'public'::regnamespace)
    AND NOT (d.refclassid = 'pg_class'::regclass AND (
        d.refobjid IN (SELECT p.oid FROM parts AS p WHERE p.classid = 'pg_class'::regclass)
        -- the sequence of a column
        OR EXISTS (
            SELECT FROM pg_depend AS o WHERE o.classid = 'pg_class'::regclass AND o.objid = d.refobjid AND o.deptype IN ('a', 'i')
            AND o.refclassid = 'pg_class'::regclass AND o.refobjid IN (SELECT oid FROM tree)
        )
    ))
    LIMIT 1
) AS lacking
