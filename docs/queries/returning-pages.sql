-- The ten pages that left the set of enabled pages and came back most often,
-- with the mean time in between.
WITH returns AS (
    SELECT page,
           time_ns - lag(time_ns) OVER (PARTITION BY page ORDER BY seq) AS since_ns
    FROM read_parquet('references/*.parquet')
)
SELECT page, count(since_ns) AS times, avg(since_ns) AS mean_ns
FROM returns
GROUP BY page
ORDER BY times DESC, page
LIMIT 10;
