//! `stk merge`: the traces of one machine on one time line.

use super::convert;
use super::profile_args::{MissingSum, check_symbols, load_file, loss_lines};
use super::replace::{self, REPLACED, is_made_of, replaces_own};
use super::report::together;
use super::values::{choice, default_name};
use super::{
    Exit, ProfileArgs, Progress, TraceChoice, Usage, guarded, inputs, note, note_line, pool, print_error,
    size, verify, warn,
};
use crate::times::TimeArg;
use anyhow::Context;
use std::path::{Path, PathBuf};
use stk_base::files::MayReplace::NoTrace;
use stk_base::text::{count, since_start, span};
use stk_output::formats::{self, Destination, Format, Options, PerfettoStyle, SourceMark};
use stk_profile::merge::{self, Anchor, Basis, MergedTimeline, ProcessGap};
use stk_profile::profile::{Join, JoinPlace, MOST_RUNS_HELD, ProcessInfo, Profile, Runs, Weight};
use stk_profile::trace::{Content, TraceFile};
use stk_schema::Arch;

/// Puts the traces of one machine on one time line: processes beside each other, the recordings of
/// one process after each other.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Traces of one boot of a machine are placed by its performance counter, exactly to a tick. Traces of other boots are
placed by the time of day, and stk says how far that may be off. Traces of different machines are refused, unless
--by-time-of-day is given.

Traces of one process, such as the files of inject --rotate, become one process: a thread with the same id and time of
creation is one thread. The times between them, in which nothing was recorded, have no weight and are shown as gaps.

Times (--from, --until) count from the beginning of the first trace, and each trace's own start is printed.

Examples:
  stk merge client.stk server.stk -o both.chrome.json
  stk merge night/*.stk --to perfetto -y symbols
  stk merge app.0001.stk app.0002.stk app.0003.stk -o app.firefox.json --from 03:14Z --until 03:20Z")]
pub(super) struct MergeArgs {
    /// Traces: files, patterns such as *.stk, or folders, whose .stk files are taken
    #[arg(required = true, value_name = "FILE")]
    files: Vec<PathBuf>,
    /// Output file, or - for standard output [default: merged.chrome.json, or as --to says]
    #[arg(short, long, value_name = "FILE|-")]
    output: Option<PathBuf>,
    /// Output format, one that has a time line; by default that of the output's name, or chrome
    #[arg(short, long, value_parser = choice::<Format>(), value_name = "FORMAT")]
    to: Option<Format>,
    /// Place traces by the time of day where nothing better is known, also those of different
    /// machines
    #[arg(long)]
    by_time_of_day: bool,
    /// Take out the times in which none of the traces was recorded, except a second of each. Times
    /// then count on the time line without them
    #[arg(long)]
    close_gaps: bool,
    /// Replace a file that is there, unless it is a trace or an input
    #[arg(long)]
    force: bool,
    /// Threads to use [default: as many as there are processors]. The output does not depend on it
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..))]
    jobs: Option<u16>,
    /// Unit of flame-graph widths [default: cpu; active if no trace has CPU times; wall if they
    /// were also sampled at different rates; speedscope has wall, too]. Chrome has wall
    #[arg(long, value_parser = choice::<Weight>(), value_name = "WHAT", help_heading = "Output")]
    weight: Option<Weight>,
    /// Perfetto: which of its forms to write
    #[arg(long, value_parser = choice::<PerfettoStyle>(), default_value = default_name::<PerfettoStyle>(), value_name = "STYLE", help_heading = "Output")]
    perfetto_style: PerfettoStyle,
    /// One frame per source line instead of one per function
    #[arg(long, help_heading = "Output")]
    lines: bool,
    #[command(flatten)]
    profile: ProfileArgs,
}

/// A trace that is open.
struct OpenTrace {
    file: TraceFile,
    content: Content,
    anchor: Anchor,
    process: String,
    arch: Arch,
    interval_ns: u64,
}

/// Runs the command.
pub(super) fn run(args: &MergeArgs) -> anyhow::Result<Exit> {
    args.profile.check()?;
    let format = format(args)?;
    let (paths, exit) = inputs::traces(&args.files);
    let destination = destination(args, format);
    destination.file().map_or(Ok(()), |path| replace::check(&path))?;
    let paths = args.profile.select.process.traces(paths)?;
    let (traces, exit) = open(args, &paths, exit);
    let traces = without_copies(traces);
    let anchors: Vec<Anchor> = traces.iter().map(|trace| trace.anchor.clone()).collect();
    let mut line = merge::place(&anchors, args.by_time_of_day).map_err(anyhow::Error::msg)?;
    if args.close_gaps {
        line.close_gaps(&anchors, GAP_LEFT_NS);
    }
    warn_if_far_apart(&line, &anchors);
    let contents = line.places.iter().map(|place| &traces[place.trace].content);
    let Some(content) = together(contents) else { return Ok(exit) };
    check_weight(args, &traces)?;
    let verb = match destination.file() {
        Some(path) if replaces(&path, &content, args.force)? => REPLACED,
        _ => "wrote",
    };
    let (firsts, of_trace) = merge::processes(&anchors, &line);
    let processes = shown_processes(&traces, &firsts);
    let gaps = merge::gaps(&anchors, &line, &of_trace);
    print_places(&traces, &line, (&processes, &of_trace), &gaps);
    let (joined, ending) = join(args, &traces, &line, (processes, &of_trace), &gaps)?;
    let exit = exit.worse(ending);
    let Some((mut profile, runs)) = joined else { return Ok(exit) };
    profile.trace.content = Some(content);
    profile.trace.start_utc_ns = line.utc_ns;
    let counts_samples = !rates_differ(&traces);
    Ok(exit.worse(write(args, format, destination, (&profile, &runs), (verb, counts_samples))?))
}

/// What is left of a gap that is closed.
const GAP_LEFT_NS: u64 = 1_000_000_000;
/// How many times longer than what was recorded a time line may be without a word.
const FAR_APART: u64 = 100;

/// Says so if most of the time line is empty: viewers then show the traces as dots.
fn warn_if_far_apart(line: &MergedTimeline, anchors: &[Anchor]) {
    let (length_ns, recorded_ns) = (line.length_ns(anchors), line.recorded_ns(anchors));
    if length_ns / FAR_APART > recorded_ns {
        warn(&format!(
            "the time line is {} long and only {} of it were recorded: --close-gaps takes out the rest",
            span(length_ns),
            span(recorded_ns)
        ));
    }
}

/// The format that the options name.
fn format(args: &MergeArgs) -> anyhow::Result<Format> {
    let named = args.output.as_deref().filter(|path| *path != Path::new("-"));
    let by_name = named.and_then(Format::from_path);
    let format = match (args.to.or(by_name), named) {
        (Some(format), _) => format,
        (None, None) => Format::Chrome,
        (None, Some(path)) => {
            let text = format!("{}: the name has no known format: give one with --to", path.display());
            return Err(Usage(text).into());
        }
    };
    if !format.has_time_line() {
        let all = Format::ALL.iter().filter(|format| format.has_time_line());
        let names: Vec<_> = all.map(|format| format.name()).collect();
        let name = format.name();
        let text = format!("{name} has no time line to merge traces on: {} have one", names.join(", "));
        return Err(Usage(text).into());
    }
    if args.weight.is_some() && !format.takes_weight() {
        return Err(
            Usage(format!("--weight is for flame graphs; {} does not depend on it", format.name())).into()
        );
    }
    Ok(format)
}

fn open(args: &MergeArgs, paths: &[PathBuf], mut exit: Exit) -> (Vec<OpenTrace>, Exit) {
    let mut traces = Vec::with_capacity(paths.len());
    for path in paths {
        match guarded(path, || opened(path, args)) {
            Ok(trace) => traces.push(trace),
            Err(error) => {
                print_error(&error);
                exit = exit.worse(verify::exit_of(&error));
            }
        }
    }
    (traces, exit)
}

fn opened(path: &Path, args: &MergeArgs) -> anyhow::Result<OpenTrace> {
    let file = args.profile.tables.open(path)?;
    let content = file.content()?;
    let trace = file.read()?;
    let (anchor, process) = (Anchor::of(&trace), trace.process());
    let (arch, interval_ns) = (trace.header().arch, trace.interval_ns());
    drop(trace);
    Ok(OpenTrace { file, content, anchor, process, arch, interval_ns })
}

/// The traces without copies of others and beginnings of others.
fn without_copies(traces: Vec<OpenTrace>) -> Vec<OpenTrace> {
    let whole_of = |i: usize| {
        let Content { digest, len, uuid, .. } = &traces[i].content;
        traces.iter().enumerate().position(|(other, trace)| {
            other != i
                && trace.content.uuid == *uuid
                && (trace.content.is_origin_of(&traces[i].content)
                    || trace.content.begins_with(*len, digest) && (trace.content.len > *len || other < i))
        })
    };
    let whole: Vec<Option<usize>> = (0..traces.len()).map(whole_of).collect();
    let name = |i: usize| traces[i].file.path().display().to_string();
    for (i, other) in whole.iter().enumerate() {
        let Some(other) = *other else { continue };
        let same = traces[i].content.digest == traces[other].content.digest;
        let what = match &traces[i].content {
            _ if same => "the same content as",
            copy if traces[other].content.is_origin_of(copy) => "a redacted copy of",
            _ => "a beginning of",
        };
        note(&format!("{}: {what} {}, which stands for both", name(i), name(other)));
    }
    traces.into_iter().zip(whole).filter(|(_, whole)| whole.is_none()).map(|(trace, _)| trace).collect()
}

/// Refuses to count samples of traces that took them at different rates.
fn check_weight(args: &MergeArgs, traces: &[OpenTrace]) -> anyhow::Result<()> {
    let is_count = matches!(args.weight, Some(Weight::Samples | Weight::Active));
    if is_count && rates_differ(traces) {
        let text = "the traces were sampled at different rates, so that their samples do not count the \
            same: use --weight cpu or wall";
        return Err(Usage(text.to_owned()).into());
    }
    Ok(())
}

/// Whether the traces were sampled at different rates.
fn rates_differ(traces: &[OpenTrace]) -> bool {
    traces.windows(2).any(|pair| pair[0].interval_ns != pair[1].interval_ns)
}

fn destination(args: &MergeArgs, format: Format) -> Destination {
    match &args.output {
        Some(path) if path == Path::new("-") => Destination::Stdout,
        Some(path) => Destination::File(path.clone()),
        None => Destination::InFolder { folder: PathBuf::new(), name: format.default_name("merged") },
    }
}

fn replaces(path: &Path, content: &Content, force: bool) -> anyhow::Result<bool> {
    let ours = |mark: &SourceMark| (mark.len, mark.digest) == (content.len, content.digest);
    replaces_own((path, NoTrace), force, " and is not stk's output of these traces", |path| {
        is_made_of(path, ours)
    })
}

/// What the output shows of each process, by its first trace.
fn shown_processes(traces: &[OpenTrace], firsts: &[usize]) -> Vec<ProcessInfo> {
    let mut list: Vec<ProcessInfo> = Vec::new();
    for trace in firsts.iter().map(|&first| &traces[first]) {
        let pid = free_pid(trace.anchor.pid, list.iter().map(|process| process.pid));
        list.push(ProcessInfo { pid, name: trace.process.clone(), arch: trace.arch });
    }
    list
}

/// A process's id, or if another has it, one that no process of Windows has.
fn free_pid(pid: u32, taken: impl Iterator<Item = u32>) -> u32 {
    let taken: Vec<u32> = taken.collect();
    // Ids of Windows are multiples of four.
    (0..).map(|n| pid.wrapping_add(n)).find(|pid| !taken.contains(pid)).unwrap_or(pid)
}

/// Prints where each trace lies, and how exactly that is known, and for how long its process was
/// not recorded before.
fn print_places(
    traces: &[OpenTrace],
    line: &MergedTimeline,
    (processes, of_trace): (&[ProcessInfo], &[u32]),
    gaps: &[ProcessGap],
) {
    let mut seen = vec![false; processes.len()];
    for place in &line.places {
        let trace = &traces[place.trace];
        let process = &processes[of_trace[place.trace] as usize];
        let continues = std::mem::replace(&mut seen[of_trace[place.trace] as usize], true);
        let verb = if continues { "continues" } else { "is" };
        let shown = match process.pid {
            pid if pid == trace.anchor.pid => String::new(),
            pid => format!(", shown as {pid}"),
        };
        let gap = gaps.iter().find(|gap| gap.before_trace == place.trace);
        let gap = gap.map_or_else(String::new, |gap| {
            format!("; {} before it are not recorded", span(gap.end_ns - gap.start_ns))
        });
        note(&format!(
            "{}: {verb} {} (pid {}{shown}), {}{gap}",
            trace.file.path().display(),
            process.name,
            trace.anchor.pid,
            where_it_lies(place.start_ns, place.basis)
        ));
        if let Basis::TimeOfDay { off_ns: None } = place.basis {
            warn(&format!(
                "{}: is not known to be of the same machine, whose clock may be any time off",
                trace.file.path().display()
            ));
        }
    }
}

/// `begins at 1.500000 s by the machine's counter (± 100 ns; by the time of day 1.2 ms later)`.
fn where_it_lies(start_ns: u64, basis: Basis) -> String {
    let at = format!("begins at {:.6} s", start_ns as f64 / 1e9);
    let ms = |ns: u64| format!("{:.1} ms", ns as f64 / 1e6);
    match basis {
        Basis::First => at,
        Basis::Counter { tick_ns, utc_later_ns } => {
            let than = if utc_later_ns < 0 { "earlier" } else { "later" };
            let apart = ms(utc_later_ns.unsigned_abs());
            format!("{at} by the machine's counter (± {tick_ns} ns; by the time of day {apart} {than})")
        }
        Basis::TimeOfDay { off_ns: Some(off) } => {
            format!("{at} by the time of day (± {} if nobody set the clock)", ms(off))
        }
        Basis::TimeOfDay { off_ns: None } => format!("{at} by the time of day"),
    }
}

type Joined = (Option<(Profile, Runs)>, Exit);

/// Reads all traces, in order of their starts.
fn join(
    args: &MergeArgs,
    traces: &[OpenTrace],
    line: &MergedTimeline,
    (processes, of_trace): (Vec<ProcessInfo>, &[u32]),
    gaps: &[ProcessGap],
) -> anyhow::Result<Joined> {
    let pool = pool(args.jobs)?;
    let progress = Progress::new("samples");
    let limit = args.profile.tables.runs_limit().unwrap_or(MOST_RUNS_HELD);
    let mut join = Join::new(processes, limit);
    let mut exit = Exit::Ok;
    let mut lines = Vec::new();
    let mut missing = MissingSum::default();
    for place in &line.places {
        let trace = &traces[place.trace];
        let part = part_of(args, traces, line, place.start_ns);
        let loaded = guarded(trace.file.path(), || pool.install(|| load_file(&trace.file, &part, &progress)));
        let loaded = match loaded {
            Ok(loaded) => loaded,
            Err(error) => {
                print_error(&error);
                exit = exit.worse(verify::exit_of(&error));
                continue;
            }
        };
        lines.extend(loss_lines(&loaded.profile));
        missing.add(&loaded.profile.trace.source, &loaded.missing);
        let (symbols, missed) = check_symbols(&loaded, &args.profile);
        lines.extend(missed);
        exit = exit.worse(loaded.exit).worse(symbols);
        let place = JoinPlace { process: of_trace[place.trace], start_ns: place.start_ns };
        join.add(&loaded.profile, &loaded.runs, place)?;
    }
    let chosen = chosen_span(args, traces, line);
    for gap in gaps.iter().filter_map(|gap| gap.within(chosen)) {
        join.add_gap(gap.process, (gap.start_ns, gap.end_ns));
    }
    drop(progress);
    lines.iter().for_each(|line| note_line(line));
    missing.print(&args.profile.symbols.options);
    Ok((join.finish()?, exit))
}

/// The options for a trace that begins at `start_ns`: those of time count from the beginning of the
/// common time line.
fn part_of(args: &MergeArgs, traces: &[OpenTrace], line: &MergedTimeline, start_ns: u64) -> ProfileArgs {
    let mut part = args.profile.clone();
    let (from_ns, until_ns) = chosen_span(args, traces, line);
    let own = |ns: u64| TimeArg::SinceStart(ns.saturating_sub(start_ns));
    part.select.from = part.select.from.map(|_| own(from_ns));
    part.select.until = part.select.until.map(|_| own(until_ns));
    part
}

/// The part of the common time line that the options choose.
fn chosen_span(args: &MergeArgs, traces: &[OpenTrace], line: &MergedTimeline) -> (u64, u64) {
    let select = &args.profile.select;
    let ends =
        line.places.iter().map(|place| place.start_ns.saturating_add(traces[place.trace].anchor.duration_ns));
    let duration_ns = ends.max().unwrap_or(0);
    let since = |time: TimeArg| {
        let since = time.since(line.utc_ns, duration_ns, select.tz.tz);
        u64::try_from(since.max(0)).unwrap_or(u64::MAX)
    };
    (select.from.map_or(0, since), select.until.map_or(u64::MAX, since))
}

fn write(
    args: &MergeArgs,
    format: Format,
    destination: Destination,
    (profile, runs): (&Profile, &Runs),
    (verb, counts_samples): (&str, bool),
) -> anyhow::Result<Exit> {
    let (mut weights, mut weights_note) =
        convert::weights(runs, format, args.weight).context("no flame graph of these traces")?;
    if weights.contains(&Weight::Active) && !counts_samples {
        weights = vec![Weight::Wall];
        weights_note = Some(
            "no CPU time is recorded, and samples were taken at different rates: the flame graph counts \
             the time that samples cover",
        );
    }
    let options = Options {
        lines: args.lines,
        perfetto_style: args.perfetto_style,
        weights,
        all_threads: true,
        ..Options::default()
    };
    let samples: u64 = profile.threads.iter().map(|thread| thread.samples).sum();
    // That one of the traces has nothing in a span of the common time line is no matter.
    let mut choice = TraceChoice::new(args.profile.is_part());
    let empty = "no samples are left: none of the traces has any in what was chosen";
    choice.add("", (samples == 0).then(|| empty.to_owned()));
    let mut writer = formats::create(format, destination.clone(), &options)?;
    let summary = formats::write(&mut *writer, profile, runs).context("the traces could not be written")?;
    weights_note.filter(|_| samples > 0).into_iter().for_each(note);
    summary.warnings.iter().for_each(|text| warn(text));
    if let Some(path) = destination.file() {
        let bytes = size(summary.files.iter().map(|(_, bytes)| bytes).sum());
        let processes = match profile.process_list().len() as u64 {
            1 => "1 process".to_owned(),
            several => format!("{} processes", count(several)),
        };
        let length = since_start(profile.trace.duration_ns);
        note(&format!("{verb} {} ({bytes}): {processes}, {length}", path.display()));
    }
    Ok(choice.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_processes_with_one_id_get_two() {
        assert_eq!(free_pid(44, [4, 8].into_iter()), 44);
        assert_eq!(free_pid(44, [44, 45].into_iter()), 46);
    }

    #[test]
    fn how_exactly_a_place_is_known_is_said() {
        let said = |basis| where_it_lies(1_500_000_000, basis);
        assert_eq!(said(Basis::First), "begins at 1.500000 s");
        assert_eq!(
            said(Basis::Counter { tick_ns: 100, utc_later_ns: -1_200_000 }),
            "begins at 1.500000 s by the machine's counter (± 100 ns; by the time of day 1.2 ms earlier)"
        );
        assert_eq!(
            said(Basis::TimeOfDay { off_ns: Some(16_000_000) }),
            "begins at 1.500000 s by the time of day (± 16.0 ms if nobody set the clock)"
        );
    }
}
