-- How long pages lived, from their first reference until they were freed, by what freed
-- them. Pages that live at the end of the trace are in no row of the table freed.
WITH first AS (
    SELECT page, min(time_ns) AS time_ns
    FROM read_parquet('references/*.parquet')
    GROUP BY page
)
SELECT coalesce(event, 'alive') AS freed_by,
       count(*) AS pages,
       avg(freed.time_ns - first.time_ns) AS mean_ns
FROM first
LEFT JOIN read_parquet('freed/*.parquet') AS freed USING (page)
GROUP BY freed_by
ORDER BY pages DESC, freed_by;
