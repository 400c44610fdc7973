//! `stk top`: what the newest samples of a recording that runs show.

use super::profile_args::load_file;
use super::{Exit, LoadedProfile, Out, Progress, SelectArgs, StackArgs, SymbolArgs, TablesArgs};
use super::{ProfileArgs, ThreadArgs, WorkerArgs, inputs, note_once, pool, terminal_columns};
use crate::times::TimeArg;
use anyhow::Context as _;
use std::borrow::Cow;
use std::cmp::Reverse;
use std::fmt::Write as _;
use std::io::{IsTerminal, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};
use stk_base::text::{count, counted, cut, pad, span};
use stk_output::stats::{self, Stats, StatsOptions};
use stk_profile::profile::{Activity, Functions, NodeId, Profile, is_system_library};
use stk_profile::trace::{Fate, FollowLosses, TraceFile, TraceTail};
use stk_schema::text::printable;

/// Follows a trace that is being recorded, and shows its last seconds: functions by CPU time, and
/// what each thread does or waits for. Only what the recorder appended is read. Ends with the
/// recording, or when the file is shortened or replaced; the numbers are those of `stk stats
/// --from`. Exit code 4: something of the trace is damaged, which the screen says, or the file is
/// gone.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Examples:
  stk top app.stk                         refreshed each second, until Ctrl-C
  stk top app.stk --once > now.txt        one screen, as plain text
  stk top app.stk -y symbols --span 10s")]
pub(super) struct TopArgs {
    /// The trace, which `inject` writes
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Print one screen and end
    #[arg(long)]
    once: bool,
    /// How much time a screen shows, back from the newest sample
    #[arg(long, value_name = "TIME", default_value = "5s", value_parser = crate::times::parse_span)]
    span: u64,
    /// Time between two screens
    #[arg(long, value_name = "TIME", default_value = "1s", value_parser = crate::times::parse_span)]
    every: u64,
    /// Functions and threads that are listed, each
    #[arg(long, value_name = "N", default_value_t = 15)]
    top: usize,
    #[command(flatten)]
    workers: WorkerArgs,
    #[command(flatten)]
    symbols: SymbolArgs,
    #[command(flatten)]
    tables: TablesArgs,
    #[command(flatten)]
    threads: ThreadArgs,
    #[command(flatten)]
    stacks: StackArgs,
}

/// How long `--once` waits for a first block of samples.
const ONCE: Duration = Duration::from_secs(10);

/// Runs the command.
pub(super) fn run(args: &TopArgs, out: Out<'_>) -> anyhow::Result<Exit> {
    let pool = pool(args.workers.jobs)?;
    let named = || args.file.display().to_string();
    inputs::refuse_dataset(&args.file)?;
    let mut follower = TraceTail::open(&args.file, args.span).with_context(named)?;
    let every = Duration::from_nanos(args.every.max(10_000_000));
    // A terminal shows one screen in place of the last; elsewhere they follow each other.
    let clear = if stdout().is_terminal() && !args.once { "\x1b[H\x1b[J" } else { "" };
    let first = Instant::now();
    loop {
        let begun = Instant::now();
        let new = follower.look().with_context(named)?;
        let ended = follower.fate() != Fate::Grows;
        if new > 0 || ended {
            let screen = pool.install(|| screen(args, &mut follower))?;
            out(&format!("{clear}{screen}{}", if clear.is_empty() && !args.once { "\n" } else { "" }))?;
            if args.once || ended {
                let whole =
                    matches!(follower.fate(), Fate::Grows | Fate::Ended) && follower.losses().is_none();
                return Ok(if whole { Exit::Ok } else { Exit::Damaged });
            }
        }
        if args.once && first.elapsed() > ONCE {
            anyhow::bail!("{}: no sample was recorded within {} s", named(), ONCE.as_secs());
        }
        std::thread::sleep(every.saturating_sub(begun.elapsed()));
    }
}

/// The newest samples as text.
fn screen(args: &TopArgs, follower: &mut TraceTail) -> anyhow::Result<String> {
    let until = follower.duration_ns();
    let from = until.saturating_sub(args.span);
    let file = TraceFile::of_bytes(&args.file, follower.excerpt());
    let profile_args = ProfileArgs {
        symbols: args.symbols.clone(),
        tables: args.tables.clone(),
        stacks: args.stacks.clone(),
        select: SelectArgs {
            from: Some(TimeArg::SinceStart(from)),
            threads: args.threads.clone(),
            ..SelectArgs::default()
        },
        ..ProfileArgs::default()
    };
    let file = file.within(args.tables.max_memory);
    let loaded = load_file(&file, &profile_args, &Progress::silent())?;
    let is_part = args.threads.is_part() || profile_args.stacks.selection(None).picks_samples();
    match loaded.empty.as_ref().filter(|_| is_part) {
        Some(why) if args.once => anyhow::bail!("{why}"),
        Some(why) => note_once(why),
        None => {}
    }
    let options = StatsOptions { top: args.top, running_only: false, weight: None, waiting: false };
    let stats = stats::collect(&loaded.profile, &loaded.runs, None, &options)?;
    let threads = threads(&loaded)?;
    let (fate, losses) = (follower.fate(), follower.losses());
    Ok(text(&stats, threads, &Window { from, until, fate, losses, rows: args.top }))
}

/// What a screen shows.
struct Window {
    from: u64,
    until: u64,
    fate: Fate,
    losses: FollowLosses,
    rows: usize,
}

/// A thread in the window.
struct ThreadRow {
    tid: u32,
    name: String,
    cpu_ns: u64,
    /// What its last sample showed.
    now: String,
}

/// The threads that were sampled: CPU time, and what they did last.
fn threads(loaded: &LoadedProfile) -> anyhow::Result<Vec<ThreadRow>> {
    let profile = &loaded.profile;
    let functions = Functions::new(profile, false);
    let mut rows: Vec<ThreadRow> = Vec::new();
    let mut last = None;
    loaded.runs.for_each(|batch| -> std::io::Result<()> {
        let thread = &profile.threads[batch.thread as usize];
        let cpu_ns = batch.runs.iter().map(|run| run.cpu_ns).fold(0, u64::saturating_add);
        let Some(run) = batch.runs.last() else { return Ok(()) };
        let now = now(profile, &functions, run.node, run.activity);
        // A thread's runs may come in several parts.
        match rows.last_mut().filter(|_| last == Some(batch.thread)) {
            Some(row) => (row.cpu_ns, row.now) = (row.cpu_ns.saturating_add(cpu_ns), now),
            None => rows.push(ThreadRow { tid: thread.tid, name: thread.name.clone(), cpu_ns, now }),
        }
        last = Some(batch.thread);
        Ok(())
    })?;
    rows.sort_by_key(|row| (Reverse(row.cpu_ns), row.tid));
    Ok(rows)
}

/// What a sample shows: `running f`, `waiting (sleep) in f`, f being the innermost function that is
/// not the system's, if there is one.
fn now(profile: &Profile, functions: &Functions, node: Option<NodeId>, activity: Activity) -> String {
    let Some(node) = node else { return format!("{activity}") };
    let names = profile.tree.frames(node).filter_map(|frame| functions.of(frame).last());
    let mut names = names.map(|id| &functions.list()[id.0 as usize]).peekable();
    let innermost = names.peek().map(|function| &function.name);
    let own = names.find(|function| !is_system_library(&function.module)).map(|function| &function.name);
    match own.or(innermost) {
        Some(name) if activity == Activity::OnCpu => format!("{activity} {}", printable(name)),
        Some(name) => format!("{activity} in {}", printable(name)),
        None => format!("{activity}"),
    }
}

/// What became of a file that was followed; empty while it grows.
pub(super) fn ending(fate: Fate) -> &'static str {
    match fate {
        Fate::Grows => "",
        Fate::Ended => "the recording has ended",
        Fate::Shortened => "the file was shortened: nothing more of it is read",
        Fate::Replaced => "the file was replaced, renamed or removed: nothing more is read",
        Fate::Lost => "the file continues without a block: nothing more of it is read",
    }
}

/// What is missing of a file that was followed, in words.
pub(super) fn lost(losses: FollowLosses) -> Vec<String> {
    let FollowLosses { bytes, blocks, dropped } = losses;
    let all = [
        (bytes, "byte", "damaged: no block is there"),
        (blocks, "block", "damaged or lost"),
        (dropped, "block", "left out: more than fit into memory"),
    ];
    let there = all.into_iter().filter(|(number, ..)| *number > 0);
    there.map(|(number, noun, what)| format!("{} {what}", counted(number, noun))).collect()
}

fn text(stats: &Stats, threads: Vec<ThreadRow>, window: &Window) -> String {
    let columns = terminal_columns();
    let length = (window.until - window.from).max(1);
    let percent = |part: u64, whole: u64| 100.0 * part as f64 / whole.max(1) as f64;
    let mut text = String::new();
    let state = match ending(window.fate) {
        "" => String::new(),
        ending => format!(", {ending}"),
    };
    let _ =
        writeln!(text, "{} (pid {}), {}{state}", printable(&stats.process), stats.pid, span(window.until));
    let _ = writeln!(
        text,
        "last {}: {} samples of {} threads, CPU {:.0} % of one processor",
        span(length),
        count(stats.totals.samples),
        threads.len(),
        percent(stats.totals.cpu_ns, length)
    );
    for lost in lost(window.losses) {
        let _ = writeln!(text, "{lost}");
    }
    let _ = writeln!(text, "\n  self  total  functions by their own {}", stats.weight.title());
    let whole = stats.counted_ns;
    for row in stats.functions_by_self.iter().take(window.rows).filter(|row| row.own.weight_ns > 0) {
        let name = match row.module.as_str() {
            "" => printable(&row.function).into_owned(),
            module => format!("{}  {}", printable(&row.function), printable(module)),
        };
        let shares = (percent(row.own.weight_ns, whole), percent(row.total.weight_ns, whole));
        line(&mut text, &format!("{:5.1}% {:5.1}%  {name}", shares.0, shares.1), columns);
    }
    let _ = writeln!(text, "\n   cpu     tid  threads");
    let more = threads.len().saturating_sub(window.rows);
    for row in threads.iter().take(window.rows) {
        let (share, name) = (percent(row.cpu_ns, length), printable(&row.name));
        line(&mut text, &format!("{share:5.1}% {:>7}  {}  {}", row.tid, pad(&name, 16), row.now), columns);
    }
    if more > 0 {
        let _ = writeln!(text, "{} more threads", count(more as u64));
    }
    text
}

/// Adds a line, cut to the terminal's width.
fn line(text: &mut String, line: &str, columns: Option<usize>) {
    let shown = columns.map_or(Cow::Borrowed(line), |columns| cut(line, columns));
    text.push_str(shown.trim_end());
    text.push('\n');
}
