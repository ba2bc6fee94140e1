-- The prepared statement's parameter types in order; of arrays the element type. The type modifier -1 means no length:
-- character without one would have one character.
SELECT format_type(coalesce(e.oid, t.oid), -1) AS element, e.oid IS NOT NULL AS is_array,
       coalesce(e.typcategory, t.typcategory) AS category
FROM pg_prepared_statements AS p
CROSS JOIN LATERAL unnest(p.parameter_types) WITH ORDINALITY AS u(type, place)
JOIN pg_type AS t ON t.oid = u.type
LEFT JOIN pg_type AS e ON e.oid = t.typelem AND t.typcategory = 'A'
WHERE p.name = 'benchlib'
ORDER BY u.place
