-- Questions to a dataset that `stk convert *.stk --to parquet -o trace.parquet` wrote, for DuckDB (https://duckdb.org):
--   duckdb < examples/recipes/duckdb.sql
-- A row of `samples` stands for `samples` equal samples in a row, for `duration_ns` of time and for `cpu_ns` of CPU time: sum
-- these, do not count rows. Stacks and frames are there once for all traces: join on their ids alone. Columns go by their names:
-- later versions add some. `date` is that of the trace's start, and in the names of folders: WHERE date = … reads those alone.

CREATE VIEW samples AS FROM read_parquet('trace.parquet/samples/*/*.parquet', union_by_name = true, hive_partitioning = true);
CREATE VIEW stacks  AS FROM read_parquet('trace.parquet/stacks/*.parquet', union_by_name = true);
CREATE VIEW frames  AS FROM read_parquet('trace.parquet/frames/*.parquet', union_by_name = true);
CREATE VIEW modules AS FROM read_parquet('trace.parquet/modules/*/*.parquet', union_by_name = true, hive_partitioning = true);
CREATE VIEW threads AS FROM read_parquet('trace.parquet/threads/*/*.parquet', union_by_name = true, hive_partitioning = true);
CREATE VIEW events  AS FROM read_parquet('trace.parquet/events/*/*.parquet', union_by_name = true, hive_partitioning = true);
CREATE VIEW gaps    AS FROM read_parquet('trace.parquet/gaps/*/*.parquet', union_by_name = true, hive_partitioning = true);
-- A trace for which a longer file of the same recording stands has a row here and no other.
CREATE VIEW traces  AS FROM read_parquet('trace.parquet/traces/*/*.parquet', union_by_name = true, hive_partitioning = true) WHERE superseded_by IS NULL;

-- Functions by their own CPU time: the innermost name of the innermost location.
SELECT f.module, f.function, sum(s.cpu_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k USING (stack_id)
JOIN frames f ON f.location_id = k.location_ids[-1] AND f.inline_index = 0
GROUP BY ALL ORDER BY self_ms DESC LIMIT 20;

-- The same for all builds of a program together, with the user's own code alone.
SELECT any_value(f.module) AS module, any_value(f.function) AS function, count(DISTINCT s.trace_id) AS traces,
       sum(s.cpu_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k USING (stack_id)
JOIN frames f ON f.location_id = k.location_ids[-1] AND f.inline_index = 0
WHERE f.category = 'user' AND f.function_key IS NOT NULL
GROUP BY f.function_key ORDER BY self_ms DESC LIMIT 20;

-- Functions by total time. DISTINCT: recursion counts once.
WITH functions_of_stacks AS (
  SELECT DISTINCT k.stack_id, f.module, f.function
  FROM (SELECT stack_id, unnest(location_ids) AS location_id FROM stacks) k
  JOIN frames f USING (location_id)
)
SELECT module, function, sum(duration_ns) / 1e6 AS total_ms
FROM samples JOIN functions_of_stacks USING (stack_id)
GROUP BY ALL ORDER BY total_ms DESC LIMIT 20;

-- Threads: their CPU time, and how long they waited.
SELECT process, pid, tid, thread_name,
       sum(cpu_ns) / 1e6 AS cpu_ms,
       sum(duration_ns) FILTER (state = 'waiting') / 1e6 AS waiting_ms
FROM samples GROUP BY ALL ORDER BY cpu_ms DESC NULLS LAST;

-- What threads wait for. Rows end with each second: run_id joins those of one wait.
SELECT wait_class, wait_reason, count(*) AS waits, sum(ns) / 1e6 AS waiting_ms, max(ns) / 1e6 AS longest_ms
FROM (
  SELECT trace_id, run_id, wait_class, wait_reason, sum(duration_ns) AS ns
  FROM samples WHERE state = 'waiting' GROUP BY ALL
)
GROUP BY ALL ORDER BY waiting_ms DESC;

-- Which stacks are incomplete, and whose fault it is.
SELECT stop_reason, stop_module, sum(samples) AS samples, 100 * sum(samples) / sum(sum(samples)) OVER () AS percent
FROM samples GROUP BY ALL ORDER BY samples DESC;

-- Which addresses lack names, by module and cause.
SELECT module, unresolved, count(DISTINCT location_id) AS addresses
FROM frames WHERE name_source = 'none' GROUP BY ALL ORDER BY addresses DESC;

-- The hottest stacks as text, root first.
SELECT string_agg(f.function, ' > ' ORDER BY p.depth, f.inline_index DESC) AS stack, any_value(t.ms) AS ms
FROM (SELECT stack_id, sum(duration_ns) / 1e6 AS ms FROM samples GROUP BY ALL ORDER BY ms DESC LIMIT 10) t
JOIN (SELECT stack_id, unnest(location_ids) AS location_id, generate_subscripts(location_ids, 1) AS depth FROM stacks) p
  USING (stack_id)
JOIN frames f USING (location_id)
GROUP BY t.stack_id ORDER BY ms DESC;

-- What threads did, second by second: rows do not reach from one into the next.
SELECT time_bucket(INTERVAL '1 second', ts_utc) AS second, tid, sum(cpu_ns) / 1e9 AS load
FROM samples GROUP BY ALL ORDER BY second, tid;

-- question: top functions over all hosts
-- By their own CPU time, and on how many machines they were seen.
SELECT f.module, f.function, count(DISTINCT s.host) AS hosts, sum(s.cpu_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k USING (stack_id)
JOIN frames f ON f.location_id = k.location_ids[-1] AND f.inline_index = 0
GROUP BY ALL ORDER BY self_ms DESC, module, function LIMIT 20;

-- question: regressions between builds
-- The time of a function's own that did not wait, for each trace of a build (`inject --label build=41`), in build 42 beside build 41.
WITH builds AS (
  SELECT trace_id, label.value AS build FROM (SELECT trace_id, unnest(labels) AS label FROM traces) WHERE label.key = 'build'
),
per_build AS (
  SELECT f.function_key, min(f.module) AS module, min(f.function) AS function,
         sum(s.duration_ns) FILTER (b.build = '41') / 1e6 / (SELECT count(*) FROM builds WHERE build = '41') AS before_ms,
         sum(s.duration_ns) FILTER (b.build = '42') / 1e6 / (SELECT count(*) FROM builds WHERE build = '42') AS after_ms
  FROM samples s
  JOIN builds b USING (trace_id)
  JOIN stacks k USING (stack_id)
  JOIN frames f ON f.location_id = k.location_ids[-1] AND f.inline_index = 0
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
JOIN stacks k USING (stack_id)
JOIN frames f ON f.location_id = k.location_ids[-1] AND f.inline_index = 0
GROUP BY k.stack_id HAVING count(DISTINCT s.trace_id) = 1 ORDER BY ms DESC, k.stack_id LIMIT 20;

-- question: slowest machines
-- How long a program runs there without waiting, beside all machines that ran it with the same label `build`.
WITH builds AS (
  SELECT trace_id, label.value AS build FROM (SELECT trace_id, unnest(labels) AS label FROM traces) WHERE label.key = 'build'
),
per_trace AS (
  SELECT s.host, s.process, b.build, s.trace_id, sum(s.duration_ns) / 1e6 AS ms
  FROM samples s LEFT JOIN builds b USING (trace_id) WHERE s.state <> 'waiting' GROUP BY ALL
),
beside AS (SELECT host, ms, median(ms) OVER (PARTITION BY process, build) AS of_all FROM per_trace)
SELECT host, count(*) AS traces, avg(ms / of_all) AS times_the_median FROM beside GROUP BY host ORDER BY times_the_median DESC, host LIMIT 20;

-- question: waits by lock
-- What threads are blocked by, and which of the user's functions waits: the innermost one. Rows end with each second: run_id joins them.
WITH users AS (
  SELECT k.stack_id, arg_max(f.module, p.depth) AS module, arg_max(f.function, p.depth) AS function
  FROM (SELECT stack_id, unnest(location_ids) AS location_id, generate_subscripts(location_ids, 1) AS depth FROM stacks) p
  JOIN stacks k USING (stack_id)
  JOIN frames f ON f.location_id = p.location_id AND f.inline_index = 0
  WHERE f.category = 'user' GROUP BY k.stack_id
)
SELECT s.wait_reason, u.module, u.function, count(DISTINCT s.trace_id || ' ' || s.run_id) AS waits, sum(s.duration_ns) / 1e6 AS waiting_ms
FROM samples s LEFT JOIN users u USING (stack_id)
WHERE s.wait_class <> 'idle'
GROUP BY ALL ORDER BY waiting_ms DESC, wait_reason, module, function LIMIT 20;
