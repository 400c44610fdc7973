-- Questions to datasets of many traces, for Spark SQL (3.4 or later):
--   spark-sql -f examples/recipes/spark.sql
-- Tables of traces are in folders by date (WHERE date = … reads those alone); stacks and frames are there once for all traces. In
-- `traces`, those for which a longer file of the same recording stands have superseded_by; they have no rows elsewhere.

CREATE TEMPORARY VIEW samples USING parquet OPTIONS (path 'trace.parquet/samples', mergeSchema true);
CREATE TEMPORARY VIEW stacks  USING parquet OPTIONS (path 'trace.parquet/stacks', mergeSchema true);
CREATE TEMPORARY VIEW frames  USING parquet OPTIONS (path 'trace.parquet/frames', mergeSchema true);
CREATE TEMPORARY VIEW traces  USING parquet OPTIONS (path 'trace.parquet/traces', mergeSchema true);

-- question: top functions over all hosts
-- By their own CPU time, and on how many machines they were seen.
SELECT f.module, f.function, count(DISTINCT s.host) AS hosts, sum(s.cpu_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k ON k.stack_id = s.stack_id
JOIN frames f ON f.location_id = element_at(k.location_ids, -1) AND f.inline_index = 0
GROUP BY f.module, f.function ORDER BY self_ms DESC, module, function LIMIT 20;

-- question: regressions between builds
-- The time of a function's own that did not wait, for each trace of a build (`inject --label build=41`), in build 42 beside build 41.
WITH builds AS (
  SELECT trace_id, label.value AS build FROM (SELECT trace_id, explode(labels) AS label FROM traces WHERE superseded_by IS NULL)
  WHERE label.key = 'build'
),
per_build AS (
  SELECT f.function_key, min(f.module) AS module, min(f.function) AS function,
         sum(s.duration_ns) FILTER (WHERE b.build = '41') / 1e6 / (SELECT count(*) FROM builds WHERE build = '41') AS before_ms,
         sum(s.duration_ns) FILTER (WHERE b.build = '42') / 1e6 / (SELECT count(*) FROM builds WHERE build = '42') AS after_ms
  FROM samples s
  JOIN builds b ON b.trace_id = s.trace_id
  JOIN stacks k ON k.stack_id = s.stack_id
  JOIN frames f ON f.location_id = element_at(k.location_ids, -1) AND f.inline_index = 0
  WHERE s.state <> 'waiting' AND f.function_key IS NOT NULL
  GROUP BY f.function_key
)
SELECT module, function, before_ms, after_ms, after_ms / before_ms AS ratio
FROM per_build WHERE after_ms > 1.1 * before_ms AND after_ms >= 1 ORDER BY after_ms - before_ms DESC, module, function LIMIT 20;

-- question: rare stacks
-- Stacks that one trace alone has, the longest first, by the function in which they end.
SELECT k.stack_id, min(f.module) AS module, min(f.function) AS function, min(s.process) AS process,
       sum(s.duration_ns) / 1e6 AS ms
FROM samples s
JOIN stacks k ON k.stack_id = s.stack_id
JOIN frames f ON f.location_id = element_at(k.location_ids, -1) AND f.inline_index = 0
GROUP BY k.stack_id HAVING count(DISTINCT s.trace_id) = 1 ORDER BY ms DESC, k.stack_id LIMIT 20;

-- question: slowest machines
-- How long a program runs there without waiting, beside all machines that ran it with the same label `build`.
WITH builds AS (
  SELECT trace_id, label.value AS build FROM (SELECT trace_id, explode(labels) AS label FROM traces WHERE superseded_by IS NULL)
  WHERE label.key = 'build'
),
per_trace AS (
  SELECT s.host, s.process, b.build, s.trace_id, sum(s.duration_ns) / 1e6 AS ms
  FROM samples s LEFT JOIN builds b ON b.trace_id = s.trace_id
  WHERE s.state <> 'waiting' GROUP BY s.host, s.process, b.build, s.trace_id
),
beside AS (SELECT host, ms, percentile(ms, 0.5) OVER (PARTITION BY process, build) AS of_all FROM per_trace)
SELECT host, count(*) AS traces, avg(ms / of_all) AS times_the_median FROM beside GROUP BY host ORDER BY times_the_median DESC, host LIMIT 20;

-- question: waits by lock
-- What threads are blocked by, and which of the user's functions waits: the innermost one. Rows end with each second: run_id joins them.
WITH users AS (
  SELECT p.stack_id, max_by(f.module, p.depth) AS module, max_by(f.function, p.depth) AS function
  FROM (SELECT stack_id, posexplode(location_ids) AS (depth, location_id) FROM stacks) p
  JOIN frames f ON f.location_id = p.location_id AND f.inline_index = 0
  WHERE f.category = 'user' GROUP BY p.stack_id
)
SELECT s.wait_reason, u.module, u.function, count(DISTINCT s.trace_id, s.run_id) AS waits, sum(s.duration_ns) / 1e6 AS waiting_ms
FROM samples s LEFT JOIN users u ON u.stack_id = s.stack_id
WHERE s.wait_class <> 'idle'
GROUP BY s.wait_reason, u.module, u.function ORDER BY waiting_ms DESC, wait_reason, module, function LIMIT 20;
