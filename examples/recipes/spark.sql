-- Questions to datasets of many traces, for Spark SQL (3.4 or later):
--   spark-sql -f examples/recipes/spark.sql
-- Tables of traces are in folders by date (WHERE date = … reads those alone); stacks and frames are there once for all traces. In
-- `traces`, those for which a longer file of the same recording stands have superseded_by; they have no rows elsewhere.

CREATE TEMPORARY VIEW samples USING parquet OPTIONS (path 'trace.parquet/samples', mergeSchema true);
CREATE TEMPORARY VIEW stacks  USING parquet OPTIONS (path 'trace.parquet/stacks', mergeSchema true);
CREATE TEMPORARY VIEW frames  USING parquet OPTIONS (path 'trace.parquet/frames', mergeSchema true);
CREATE TEMPORARY VIEW traces  USING parquet OPTIONS (path 'trace.parquet/traces', mergeSchema true);

-- Functions by their own CPU time, over all traces.
SELECT f.module, f.function, sum(s.cpu_ns) / 1e6 AS self_ms, count(DISTINCT s.trace_id) AS traces
FROM samples s
JOIN stacks k ON k.stack_id = s.stack_id
JOIN frames f ON f.location_id = element_at(k.location_ids, -1) AND f.inline_index = 0
GROUP BY f.module, f.function ORDER BY self_ms DESC LIMIT 20;

-- Ids are hashes of content: the same stack has the same id in every trace. Which stacks became slower between two versions?
SELECT s.stack_id,
       sum(CASE WHEN t.command_line LIKE '%v2%' THEN s.duration_ns END) / sum(CASE WHEN t.command_line LIKE '%v1%' THEN s.duration_ns END) AS ratio
FROM samples s JOIN traces t ON t.trace_id = s.trace_id
GROUP BY s.stack_id HAVING ratio > 1.1 ORDER BY ratio DESC LIMIT 20;
