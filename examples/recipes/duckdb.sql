-- Questions to a dataset that `stk convert *.stk --to parquet -o trace.parquet` wrote, for DuckDB (https://duckdb.org):
--   duckdb < examples/recipes/duckdb.sql
-- A row of `samples` stands for `samples` equal samples in a row and for `weight_ns` of time: sum these, do not count rows.
-- Rows that describe repeat between traces: join on trace_id as well.

CREATE VIEW samples AS FROM 'trace.parquet/samples/*.parquet';
CREATE VIEW stacks  AS FROM 'trace.parquet/stacks/*.parquet';
CREATE VIEW frames  AS FROM 'trace.parquet/frames/*.parquet';
CREATE VIEW modules AS FROM 'trace.parquet/modules/*.parquet';
CREATE VIEW threads AS FROM 'trace.parquet/threads/*.parquet';
CREATE VIEW traces  AS FROM 'trace.parquet/traces/*.parquet';

-- Functions by self time: the innermost name of the innermost location.
SELECT f.module, f.function, sum(s.weight_ns) / 1e6 AS self_ms
FROM samples s
JOIN stacks k USING (trace_id, stack_id)
JOIN frames f ON f.trace_id = s.trace_id AND f.location_id = k.location_ids[-1] AND f.inline_index = 0
WHERE s.running IS DISTINCT FROM false
GROUP BY ALL ORDER BY self_ms DESC LIMIT 20;

-- Functions by total time. DISTINCT: recursion counts once.
WITH functions_of_stacks AS (
  SELECT DISTINCT k.trace_id, k.stack_id, f.module, f.function
  FROM (SELECT trace_id, stack_id, unnest(location_ids) AS location_id FROM stacks) k
  JOIN frames f USING (trace_id, location_id)
)
SELECT module, function, sum(weight_ns) / 1e6 AS total_ms
FROM samples JOIN functions_of_stacks USING (trace_id, stack_id)
GROUP BY ALL ORDER BY total_ms DESC LIMIT 20;

-- Threads: how long they ran and waited.
SELECT process, pid, tid, thread_name,
       sum(weight_ns) FILTER (running) / 1e6 AS running_ms,
       sum(weight_ns) FILTER (NOT running) / 1e6 AS waiting_ms,
       sum(cpu_ns) / 1e6 AS cpu_ms
FROM samples GROUP BY ALL ORDER BY running_ms DESC NULLS LAST;

-- Which stacks are incomplete, and whose fault it is.
SELECT stop_reason, stop_module, sum(samples) AS samples, 100 * sum(samples) / sum(sum(samples)) OVER () AS percent
FROM samples GROUP BY ALL ORDER BY samples DESC;

-- Which addresses lack names, by module and cause.
SELECT module, unresolved, count(DISTINCT location_id) AS addresses
FROM frames WHERE name_source = 'none' GROUP BY ALL ORDER BY addresses DESC;

-- The hottest stacks as text, root first.
SELECT string_agg(f.function, ' > ' ORDER BY p.depth, f.inline_index DESC) AS stack, any_value(t.ms) AS ms
FROM (SELECT trace_id, stack_id, sum(weight_ns) / 1e6 AS ms FROM samples GROUP BY ALL ORDER BY ms DESC LIMIT 10) t
JOIN (SELECT trace_id, stack_id, unnest(location_ids) AS location_id, generate_subscripts(location_ids, 1) AS depth FROM stacks) p
  USING (trace_id, stack_id)
JOIN frames f USING (trace_id, location_id)
GROUP BY t.trace_id, t.stack_id ORDER BY ms DESC;

-- What one thread did, tick by tick.
SELECT time_bucket(INTERVAL '1 second', ts_utc) AS second, tid, sum(weight_ns) FILTER (running) / 1e9 AS load
FROM samples GROUP BY ALL ORDER BY second, tid;
