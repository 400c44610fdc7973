-- Questions to a dataset that `stk convert *.stk --to parquet -o trace.parquet` wrote, for DuckDB (https://duckdb.org):
--   duckdb < examples/recipes/duckdb.sql
-- A row of `samples` stands for `samples` equal samples in a row, for `duration_ns` of time and for `cpu_ns` of CPU time: sum
-- these, do not count rows. Rows that describe repeat between traces: join on trace_id as well. Columns go by their names: later
-- versions add some.

CREATE VIEW samples AS FROM read_parquet('trace.parquet/samples/*.parquet', union_by_name = true);
CREATE VIEW stacks  AS FROM read_parquet('trace.parquet/stacks/*.parquet', union_by_name = true);
CREATE VIEW frames  AS FROM read_parquet('trace.parquet/frames/*.parquet', union_by_name = true);
CREATE VIEW modules AS FROM read_parquet('trace.parquet/modules/*.parquet', union_by_name = true);
CREATE VIEW threads AS FROM read_parquet('trace.parquet/threads/*.parquet', union_by_name = true);
-- A trace for which a longer file of the same recording stands has a row here and no other.
CREATE VIEW traces  AS FROM read_parquet('trace.parquet/traces/*.parquet', union_by_name = true) WHERE superseded_by IS NULL;

-- Each name once for all traces, the best that any of them had: a table to join on location_id alone.
CREATE VIEW frames_once AS
SELECT DISTINCT ON (location_id, inline_index) * EXCLUDE (trace_id)
FROM frames ORDER BY location_id, inline_index, list_position(['pdb', 'dwarf', 'runtime', 'export', 'none'], name_source), trace_id;

-- Functions by their own CPU time: the innermost name of the innermost location.
SELECT f.module, f.function, sum(s.cpu_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k USING (trace_id, stack_id)
JOIN frames f ON f.trace_id = s.trace_id AND f.location_id = k.location_ids[-1] AND f.inline_index = 0
GROUP BY ALL ORDER BY self_ms DESC LIMIT 20;

-- The same for all builds of a program together, with the user's own code alone.
SELECT any_value(f.module) AS module, any_value(f.function) AS function, count(DISTINCT s.trace_id) AS traces,
       sum(s.cpu_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k USING (trace_id, stack_id)
JOIN frames f ON f.trace_id = s.trace_id AND f.location_id = k.location_ids[-1] AND f.inline_index = 0
WHERE f.category = 'user' AND f.function_key IS NOT NULL
GROUP BY f.function_key ORDER BY self_ms DESC LIMIT 20;

-- Functions by total time. DISTINCT: recursion counts once.
WITH functions_of_stacks AS (
  SELECT DISTINCT k.trace_id, k.stack_id, f.module, f.function
  FROM (SELECT trace_id, stack_id, unnest(location_ids) AS location_id FROM stacks) k
  JOIN frames f USING (trace_id, location_id)
)
SELECT module, function, sum(duration_ns) / 1e6 AS total_ms
FROM samples JOIN functions_of_stacks USING (trace_id, stack_id)
GROUP BY ALL ORDER BY total_ms DESC LIMIT 20;

-- Threads: their CPU time, and how long they waited.
SELECT process, pid, tid, thread_name,
       sum(cpu_ns) / 1e6 AS cpu_ms,
       sum(duration_ns) FILTER (state = 'waiting') / 1e6 AS waiting_ms
FROM samples GROUP BY ALL ORDER BY cpu_ms DESC NULLS LAST;

-- What threads wait for.
SELECT wait_class, wait_reason, count(*) AS waits, sum(duration_ns) / 1e6 AS waiting_ms, max(duration_ns) / 1e6 AS longest_ms
FROM samples WHERE state = 'waiting' GROUP BY ALL ORDER BY waiting_ms DESC;

-- Which stacks are incomplete, and whose fault it is.
SELECT stop_reason, stop_module, sum(samples) AS samples, 100 * sum(samples) / sum(sum(samples)) OVER () AS percent
FROM samples GROUP BY ALL ORDER BY samples DESC;

-- Which addresses lack names, by module and cause.
SELECT module, unresolved, count(DISTINCT location_id) AS addresses
FROM frames WHERE name_source = 'none' GROUP BY ALL ORDER BY addresses DESC;

-- The hottest stacks as text, root first.
SELECT string_agg(f.function, ' > ' ORDER BY p.depth, f.inline_index DESC) AS stack, any_value(t.ms) AS ms
FROM (SELECT trace_id, stack_id, sum(duration_ns) / 1e6 AS ms FROM samples GROUP BY ALL ORDER BY ms DESC LIMIT 10) t
JOIN (SELECT trace_id, stack_id, unnest(location_ids) AS location_id, generate_subscripts(location_ids, 1) AS depth FROM stacks) p
  USING (trace_id, stack_id)
JOIN frames f USING (trace_id, location_id)
GROUP BY t.trace_id, t.stack_id ORDER BY ms DESC;

-- What one thread did, tick by tick.
SELECT time_bucket(INTERVAL '1 second', ts_utc) AS second, tid, sum(cpu_ns) / 1e9 AS load
FROM samples GROUP BY ALL ORDER BY second, tid;
