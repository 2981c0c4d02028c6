-- Processes, and how many of their pages others referenced, too.
WITH uses AS (
    SELECT DISTINCT page, process
    FROM read_parquet('references/*.parquet')
),
users AS (
    SELECT page, count(*) AS processes FROM uses GROUP BY page
)
SELECT uses.process,
       comm,
       count(*) AS pages,
       count(*) FILTER (processes > 1) AS shared
FROM uses
JOIN users USING (page)
LEFT JOIN read_parquet('processes/*.parquet') AS names ON names.process = uses.process
GROUP BY uses.process, comm
ORDER BY pages DESC, uses.process;
