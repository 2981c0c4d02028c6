-- Working set: pages referenced in each tenth of a second, and how often.
SELECT time_ns // 100000000 AS tenth,
       count(DISTINCT page) AS pages,
       count(*) AS refs
FROM read_parquet('references/*.parquet')
GROUP BY tenth
ORDER BY tenth;
