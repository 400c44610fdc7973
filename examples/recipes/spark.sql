-- Questions to datasets of many traces, for Spark SQL (3.4 or later):
--   spark-sql -f examples/recipes/spark.sql
-- Files are one a trace: point the views at a folder that holds thousands of them. In `traces`, those for which a longer file of
-- the same recording stands have superseded_by; they have no rows elsewhere.

CREATE TEMPORARY VIEW samples USING parquet OPTIONS (path 'trace.parquet/samples', mergeSchema true);
CREATE TEMPORARY VIEW stacks  USING parquet OPTIONS (path 'trace.parquet/stacks', mergeSchema true);
CREATE TEMPORARY VIEW frames  USING parquet OPTIONS (path 'trace.parquet/frames', mergeSchema true);
CREATE TEMPORARY VIEW traces  USING parquet OPTIONS (path 'trace.parquet/traces', mergeSchema true);

-- Functions by their own CPU time, over all traces.
SELECT f.module, f.function, sum(s.cpu_ns) / 1e6 AS self_ms, count(DISTINCT s.trace_id) AS traces
FROM samples s
JOIN stacks k ON k.trace_id = s.trace_id AND k.stack_id = s.stack_id
JOIN frames f ON f.trace_id = s.trace_id AND f.location_id = element_at(k.location_ids, -1) AND f.inline_index = 0
GROUP BY f.module, f.function ORDER BY self_ms DESC LIMIT 20;

-- Ids are hashes of content: the same stack has the same id in every trace. Which stacks became slower between two versions?
SELECT s.stack_id,
       sum(CASE WHEN t.command_line LIKE '%v2%' THEN s.duration_ns END) / sum(CASE WHEN t.command_line LIKE '%v1%' THEN s.duration_ns END) AS ratio
FROM samples s JOIN traces t ON t.trace_id = s.trace_id
GROUP BY s.stack_id HAVING ratio > 1.1 ORDER BY ratio DESC LIMIT 20;

-- Compaction: describe each location once for all traces, with the best name that any trace had.
CREATE TABLE frames_once USING parquet AS
SELECT location_id, inline_index, max_by(struct(function, function_id, function_key, file, line, module, debug_id, rva), rank) AS frame
FROM (
  SELECT *, CASE name_source WHEN 'pdb' THEN 3 WHEN 'dwarf' THEN 2 WHEN 'export' THEN 1 ELSE 0 END AS rank FROM frames
)
GROUP BY location_id, inline_index;
