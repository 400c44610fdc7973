//! `stk stats` of a Parquet dataset: the sum of its traces, from its tables.

use super::super::datasets::{self, DatasetArg, SumRequest};
use super::super::{Exit, Out, Progress, TraceChoice, Usage, note, pool};
use super::{Format, StatsArgs, look};
use crate::dataset::{Dataset, DatasetPart, DatasetThread, DatasetTrace};
use serde::Serialize;
use std::collections::{BTreeSet, HashMap};
use stk_base::text::{counted, utc_date};
use stk_output::stats::{self, GroupKey, ManyStats, NO_LABEL, NO_NAME, Question, StatsOptions, Subject};
use stk_profile::profile::{Additive, SelectionShare, ThreadInfo};

/// What of a dataset was summed up, for JSON.
#[derive(Serialize)]
struct DatasetDocument {
    /// Its folder.
    dataset: String,
    hosts: Vec<String>,
    processes: Vec<String>,
    /// UTC dates on which the traces began.
    first_date: String,
    last_date: String,
    /// Samples that the recorders dropped.
    dropped: u64,
}

/// Runs the command.
pub(super) fn run(named: &DatasetArg, args: &StatsArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let format = if args.json { Format::Json } else { args.format.unwrap_or_default() };
    check(args)?;
    let dataset = named.open(&args.profile)?;
    let traces = dataset.traces().len();
    let asked = args.question.question(format, args.top, traces)?;
    // The lists of single traces have no counterpart: programs get the functions.
    let question = match (asked, format) {
        (None, Format::Json) => args.question.functions(format, args.top, traces).map(Some)?,
        (asked, _) => asked,
    };
    let options =
        StatsOptions { top: usize::MAX, running_only: args.running, weight: args.weight, waiting: false };
    let sources = distinct_sources(&dataset);
    let keys = match &question {
        Some(Question { subject: Subject::Groups(keys), .. }) => keys.as_slice(),
        _ => &[],
    };
    if keys.iter().any(|key| matches!(key, GroupKey::Time(_))) {
        let text = "--group-by time is for traces: of a dataset's samples, group the column start_ns in SQL";
        return Err(Usage(text.to_owned()).into());
    }
    let of_thread: Vec<&GroupKey> = keys.iter().filter(|key| key.is_of_thread()).collect();
    let values = |trace: &DatasetTrace, thread: Option<DatasetThread<'_>>| {
        of_thread.iter().map(|key| value(key, trace, thread, &sources)).collect()
    };
    let wanted = SumRequest {
        values: &values,
        by_trace: false,
        by_thread: of_thread.iter().any(|key| matches!(key, GroupKey::Thread | GroupKey::ThreadName)),
        states: keys.iter().any(|key| matches!(key, GroupKey::State | GroupKey::Kind)),
        waits: question.is_none(),
    };
    let progress = Progress::new("rows");
    let pool = pool(args.workers.jobs)?;
    let parts = pool.install(|| datasets::load(&dataset, &args.profile, &wanted, &progress))?;
    drop(progress);
    let mut many = ManyStats::of_dataset(totals(&dataset));
    let mut chosen = 0u64;
    let mut share: Option<SelectionShare> = None;
    for part in &parts {
        let (mut stats, sums) = stats::collect_of(
            &part.profile,
            &part.runs,
            None,
            &options,
            question.as_ref(),
            Some(&part.values),
        )?;
        chosen += stats.totals.samples;
        count_waits(&mut stats, part)?;
        sums.into_iter().for_each(|sums| many.add_to_answer(sums));
        if let Some(of_part) = &part.profile.selection {
            let sum = share.get_or_insert_default();
            sum.chosen.add(of_part.chosen);
            sum.whole.add(of_part.whole);
            sum.without_root.add(of_part.without_root);
        }
        many.add(stats);
    }
    if keys.iter().all(GroupKey::is_of_trace) {
        for trace in dataset.traces() {
            many.add_recorded(&values(trace, None), trace.asked_ns());
        }
    }
    let folder = dataset.folder().display().to_string();
    let mut choice = TraceChoice::new(args.profile.is_part());
    share.iter().for_each(|share| note(&format!("{folder}: selection: {}", share.describe())));
    choice.add(&folder, (chosen == 0).then(|| format!("{folder}: no samples are left")));
    out(&text(&dataset, args, format, question.as_ref(), &many)?)?;
    Ok(choice.finish())
}

/// Refuses what the sum of many traces does not have.
fn check(args: &StatsArgs) -> anyhow::Result<()> {
    let refused = [
        (args.each, "--each", "--group-by trace lists its traces"),
        (args.full, "--full", "ask for one list with --group-by, such as module or thread-name"),
        (args.waiting, "--waiting", "use --group-by wait-reason,function --state waiting --weight waiting"),
    ];
    match refused.into_iter().find(|(given, ..)| *given) {
        Some((_, option, way)) => Err(Usage(format!("{option} is not for a dataset: {way}")).into()),
        None => Ok(()),
    }
}

/// The names of traces, which distinguish those of one name by their ids.
fn distinct_sources(dataset: &Dataset) -> HashMap<String, String> {
    let mut uses: HashMap<&str, u32> = HashMap::new();
    for trace in dataset.traces() {
        *uses.entry(&trace.source).or_default() += 1;
    }
    let name = |trace: &DatasetTrace| match uses[trace.source.as_str()] {
        1 => trace.source.clone(),
        _ => format!("{} ({})", trace.source, trace.trace_id.get(..8).unwrap_or(&trace.trace_id)),
    };
    dataset.traces().iter().map(|trace| (trace.trace_id.clone(), name(trace))).collect()
}

/// The value of a key that all samples of a thread share.
fn value(
    key: &GroupKey,
    trace: &DatasetTrace,
    thread: Option<DatasetThread<'_>>,
    sources: &HashMap<String, String>,
) -> String {
    let thread_name = || thread.map(|thread| thread.name).filter(|name| !name.is_empty());
    match key {
        GroupKey::Host => trace.host.clone(),
        GroupKey::Process => trace.process.clone(),
        GroupKey::Trace => sources.get(&trace.trace_id).cloned().unwrap_or_default(),
        GroupKey::ThreadName => thread_name().unwrap_or(NO_NAME).to_owned(),
        GroupKey::Label(label) => {
            let found = trace.labels.iter().find(|(key, _)| key == label);
            found.map_or(NO_LABEL, |(_, value)| value).to_owned()
        }
        GroupKey::Thread => thread.map_or_else(String::new, |thread| {
            let (name, tid) = (thread.name.to_owned(), thread.tid);
            ThreadInfo { tid, name, ..ThreadInfo::default() }.label()
        }),
        _ => String::new(),
    }
}

/// What the traces come to before their samples are read.
fn totals(dataset: &Dataset) -> stats::DatasetTotals {
    let traces = dataset.traces();
    let sum = |of: fn(&DatasetTrace) -> u64| traces.iter().map(of).fold(0, u64::saturating_add);
    stats::DatasetTotals {
        name: dataset.folder().display().to_string(),
        traces: traces.len() as u64,
        duration_ns: sum(DatasetTrace::asked_ns),
        dropped: sum(|trace| trace.dropped),
        bytes: sum(|trace| trace.bytes),
    }
}

/// Gives the waits their numbers and lengths, which the sums of runs lack.
fn count_waits(stats: &mut stats::Stats, part: &DatasetPart) -> anyhow::Result<()> {
    let mut counted: HashMap<&'static str, (u64, u64)> = HashMap::new();
    part.runs.for_each(|batch| {
        for run in batch.runs {
            let waits = part.waits.get(run.capture_tag as usize).copied().unwrap_or_default();
            if let Some(wait) = run.activity.wait() {
                let (number, longest_ns) = counted.entry(wait.reason()).or_default();
                *number = number.saturating_add(waits.waits);
                *longest_ns = (*longest_ns).max(waits.longest_ns);
            }
        }
        Ok::<(), std::io::Error>(())
    })?;
    for wait in &mut stats.waits {
        (wait.waits, wait.longest_ns) = counted.get(wait.reason).copied().unwrap_or_default();
    }
    Ok(())
}

fn text(
    dataset: &Dataset,
    args: &StatsArgs,
    format: Format,
    question: Option<&Question>,
    many: &ManyStats,
) -> anyhow::Result<String> {
    let names = |of: fn(&DatasetTrace) -> &String| -> BTreeSet<String> {
        dataset.traces().iter().map(of).cloned().collect()
    };
    let (hosts, processes) = (names(|trace| &trace.host), names(|trace| &trace.process));
    let dates = || dataset.traces().iter().map(|trace| trace.start_utc_ns);
    let day = |ns: Option<u64>| utc_date(ns.unwrap_or(0));
    let (first_date, last_date) = (day(dates().min()), day(dates().max()));
    match (format, question) {
        (Format::Csv, Some(question)) => {
            Ok(many.sum(question).answer.map(|answer| answer.csv()).unwrap_or_default())
        }
        (Format::Json, Some(question)) => {
            let document = serde_json::json!({
                "version": stats::VERSION,
                "traces": [],
                "dataset": DatasetDocument {
                    dataset: dataset.folder().display().to_string(),
                    hosts: hosts.into_iter().collect(),
                    processes: processes.into_iter().collect(),
                    first_date,
                    last_date,
                    dropped: dataset.traces().iter().map(|trace| trace.dropped).fold(0, u64::saturating_add),
                },
                "sum": many.sum(question),
            });
            Ok(serde_json::to_string_pretty(&document)? + "\n")
        }
        (_, question) => {
            let mut page = Vec::new();
            let (hosts, processes) = (hosts.len() as u64, processes.len() as u64);
            let of = format!("{} on {}", counted(processes, "process"), counted(hosts, "host"));
            let about = match first_date == last_date {
                true => format!("{of}, {first_date}"),
                false => format!("{of}, {first_date} to {last_date}"),
            };
            let top =
                args.top.map_or(StatsOptions::default().top, |top| if top == 0 { usize::MAX } else { top });
            many.print_dataset(&mut page, &look(args), &about, question, top)?;
            Ok(String::from_utf8_lossy(&page).into_owned())
        }
    }
}
