//! The figures as text.

use super::{Amount, FunctionStats, Stats, Totals};
use crate::profile::Weight;
use crate::text::{count, date_and_time};
use std::fmt::Write as _;
use std::io::{self, Write};
use stk_schema::text::printable;

/// Limit for the width of a name in the last but one column. Longer names are cut.
const NAME_WIDTH: usize = 60;

/// Prints the figures of a trace. With `color`, headings are bold.
///
/// # Errors
///
/// When `out` cannot be written.
pub fn print(stats: &Stats, out: &mut dyn Write, color: bool) -> io::Result<()> {
    let mut page = Page { out, color };
    head(stats, &mut page)?;
    let mostly_waits = cpu_share(stats).is_some_and(|share| share < MOSTLY_WAITS);
    if mostly_waits {
        waits(stats, &mut page)?;
    }
    functions(stats, &mut page)?;
    modules(stats, &mut page)?;
    if !mostly_waits {
        waits(stats, &mut page)?;
    }
    threads(stats, &mut page)?;
    stops(stats, &mut page)?;
    trusts(stats, &mut page)?;
    names(stats, &mut page)
}

/// Below this share of one processor, the waits are shown first.
const MOSTLY_WAITS: f64 = 0.1;

/// The CPU time as a share of one processor over the recording; `None` if it is not known.
fn cpu_share(stats: &Stats) -> Option<f64> {
    let Totals { cpu_ns, duration_ns, .. } = stats.totals;
    (cpu_ns > 0 && duration_ns > 0).then(|| cpu_ns as f64 / duration_ns as f64)
}

struct Page<'a> {
    out: &'a mut dyn Write,
    color: bool,
}

impl Page<'_> {
    fn heading(&mut self, text: &str) -> io::Result<()> {
        let (on, off) = if self.color { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
        writeln!(self.out, "\n{on}{text}{off}")
    }

    fn line(&mut self, text: &str) -> io::Result<()> {
        writeln!(self.out, "{}", text.trim_end())
    }
}

fn head(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let totals = &stats.totals;
    let (on, off) = if page.color { ("\x1b[1m", "\x1b[0m") } else { ("", "") };
    let host = if stats.host.is_empty() { String::new() } else { format!(" on {}", printable(&stats.host)) };
    let process = printable(&stats.process);
    page.line(&format!("{on}{}{off}", printable(&stats.source)))?;
    page.line(&format!(
        "  {process} (pid {}, {}){host}, from {}",
        stats.pid,
        stats.arch,
        utc(stats.start_utc_ns)
    ))?;
    page.line(&format!(
        "  {} recorded, {} samples of {} threads, nominally every {}",
        time(totals.duration_ns),
        count(totals.samples),
        count(totals.threads),
        time(totals.interval_ns),
    ))?;
    let size = match (totals.file_bytes, totals.bytes_per_sample) {
        (Some(bytes), Some(each)) => format!(", {} on disk, {each:.1} bytes a sample", size(bytes)),
        (Some(bytes), None) => format!(", {} on disk", size(bytes)),
        _ => String::new(),
    };
    page.line(&format!(
        "  {} distinct stacks, {} distinct frames{size}",
        count(totals.distinct_stacks),
        count(totals.distinct_frames),
    ))?;
    let dropped = match totals.dropped {
        0 => "no samples dropped".to_owned(),
        samples => format!("{} samples dropped", count(samples)),
    };
    let reasons: Vec<String> = stats
        .dropped
        .iter()
        .map(|dropped| format!("{} times: {}", count(dropped.samples), printable(&dropped.reason)))
        .collect();
    let reasons = if reasons.is_empty() { String::new() } else { format!(" ({})", reasons.join(", ")) };
    page.line(&format!("  {dropped}{reasons}"))?;
    if !stats.complete {
        page.line("  the recorder did not finish this trace: its last moments may be missing")?;
    }
    if !stats.damaged_blocks.is_empty() {
        page.line(&format!(
            "  {} damaged blocks could not be read",
            count(stats.damaged_blocks.len() as u64)
        ))?;
    }
    let part = |amount: Amount| {
        format!(
            "{} ({})",
            time(amount.weight_ns),
            percent(amount.weight_ns, stats.totals.weight_ns).trim_start()
        )
    };
    let cpu = match cpu_share(stats) {
        Some(share) => {
            format!("CPU time {}, {:.1} % of one processor", time(totals.cpu_ns), 100.0 * share)
        }
        None => "CPU time is not recorded".to_owned(),
    };
    page.line(&format!("  {cpu}"))?;
    page.line(&format!(
        "  of the threads' time: running {}, waiting {}, in system calls {}, ready or not known {}",
        part(stats.states.running),
        part(stats.states.waiting),
        part(stats.states.system_call),
        part(stats.states.unknown),
    ))
}

fn waits(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.waits.is_empty() {
        return Ok(());
    }
    page.heading("Waits (the short ones between two samples are not seen)")?;
    page.line("        time              waits    longest  class    for")?;
    for wait in &stats.waits {
        page.line(&format!(
            "  {:>10} {} {:>12} {:>10}  {:<7}  {}",
            time(wait.weight_ns),
            percent(wait.weight_ns, stats.totals.weight_ns),
            count(wait.waits),
            time(wait.longest_ns),
            wait.class.as_str(),
            wait.reason,
        ))?;
    }
    Ok(())
}

fn functions(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let of = if stats.running_only { " (waiting threads left out)" } else { "" };
    let by = stats.weight.title();
    let lists = [
        (format!("Functions by their own {by}{of}"), &stats.functions_by_self),
        (format!("Functions by {by} with callees{of}"), &stats.functions_by_total),
    ];
    for (heading, list) in lists {
        if list.is_empty() {
            continue;
        }
        page.heading(&heading)?;
        amounts(
            stats,
            page,
            list.iter().map(|f: &FunctionStats| (f.own, f.total, f.function.as_str(), modules_of(f))),
        )?;
    }
    Ok(())
}

fn modules(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.modules.is_empty() {
        return Ok(());
    }
    page.heading(&format!("Modules by their own {}", stats.weight.title()))?;
    let name = |module: &str| if module.is_empty() { "(no module)".to_owned() } else { module.to_owned() };
    let rows: Vec<_> = stats.modules.iter().map(|m| (m.own, m.total, name(&m.module))).collect();
    amounts(stats, page, rows.iter().map(|(own, total, name)| (*own, *total, name.as_str(), String::new())))
}

/// The first module that has a function's code, and the number of others.
fn modules_of(function: &FunctionStats) -> String {
    match function.modules {
        0 | 1 => function.module.clone(),
        several => format!("{} and {} more", function.module, several - 1),
    }
}

/// Rows of self time, total time, a name and its module.
fn amounts<'a>(
    stats: &Stats,
    page: &mut Page<'_>,
    rows: impl Iterator<Item = (Amount, Amount, &'a str, String)>,
) -> io::Result<()> {
    let rows: Vec<_> = rows
        .map(|(own, total, name, module)| {
            (own, total, cut(&printable(name)), printable(&module).into_owned())
        })
        .collect();
    let width = rows.iter().map(|row| row.2.chars().count()).max().unwrap_or(0);
    let amount = |amount: Amount| match stats.weight {
        Weight::Samples | Weight::Active => count(amount.weight_ns / stats.totals.interval_ns.max(1)),
        _ => time(amount.weight_ns),
    };
    page.line("        self              total")?;
    for (own, total, name, module) in rows {
        page.line(&format!(
            "  {:>9} {} {:>10} {}  {name:<width$}  {module}",
            amount(own),
            percent(own.weight_ns, stats.counted_ns),
            amount(total),
            percent(total.weight_ns, stats.counted_ns),
        ))?;
    }
    Ok(())
}

fn threads(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.threads.is_empty() {
        return Ok(());
    }
    let shown = stats.threads.len() as u64;
    let more = if shown < stats.totals.threads {
        format!(" ({} of {})", count(shown), count(stats.totals.threads))
    } else {
        String::new()
    };
    page.heading(&format!("Threads{more}"))?;
    page.line("     samples       time  running  waiting  system calls  not known        CPU       tid")?;
    for thread in &stats.threads {
        let all = thread.all.weight_ns;
        page.line(&format!(
            "  {:>10} {:>10}  {}  {}       {}    {} {:>10} {:>9}  {}",
            count(thread.all.samples),
            time(all),
            percent(thread.states.running.weight_ns, all),
            percent(thread.states.waiting.weight_ns, all),
            percent(thread.states.system_call.weight_ns, all),
            percent(thread.states.unknown.weight_ns, all),
            if stats.totals.cpu_ns == 0 { "-".to_owned() } else { time(thread.cpu_ns) },
            thread.tid,
            printable(&thread.name),
        ))?;
    }
    Ok(())
}

fn stops(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.stops.is_empty() {
        return Ok(());
    }
    page.heading("Where stacks end")?;
    for stop in &stats.stops {
        let mut text = stop.reason.as_str().to_owned();
        if stop.reason.is_complete() {
            text += " (complete)";
        }
        if !stop.module.is_empty() {
            let _ = write!(text, " in {}", printable(&stop.module));
        }
        page.line(&format!(
            "  {} {:>10} {}  {text}",
            share(stop.share),
            count(stop.samples),
            if stop.samples == 1 { "sample " } else { "samples" }
        ))?;
    }
    Ok(())
}

fn trusts(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    if stats.trusts.is_empty() {
        return Ok(());
    }
    page.heading("How frames were found")?;
    for trust in &stats.trusts {
        let mut text = trust.trust.as_str().to_owned();
        if !trust.proved {
            let module = if trust.module.is_empty() { "(no module)" } else { &trust.module };
            let _ = write!(text, " from {} (not proved)", printable(module));
        }
        page.line(&format!("  {} {:>10} frames   {text}", share(trust.share), count(trust.frames)))?;
    }
    Ok(())
}

fn names(stats: &Stats, page: &mut Page<'_>) -> io::Result<()> {
    let frames = &stats.frames;
    if frames.frames == 0 {
        return Ok(());
    }
    page.heading("Names of frames")?;
    for (amount, text) in [
        (frames.named, "from symbols"),
        (frames.export_only, "after the nearest export"),
        (frames.unresolved, "none"),
    ] {
        page.line(&format!("  {}  {text}", percent(amount, frames.frames)))?;
    }
    if !frames.causes.is_empty() {
        page.line("  of which without symbols:")?;
    }
    for cause in &frames.causes {
        let module = if cause.module.is_empty() { "(no module)".into() } else { printable(&cause.module) };
        let addresses = if cause.addresses == 1 { "address" } else { "addresses" };
        page.line(&format!(
            "    {} {module}: {} ({} {addresses}{})",
            share(cause.share),
            printable(&cause.cause),
            count(cause.addresses),
            if cause.export_only { ", export names only" } else { "" },
        ))?;
    }
    Ok(())
}

/// Shortens a long name in its middle, since both ends of a C++ name are useful.
fn cut(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    if chars.len() <= NAME_WIDTH {
        return name.to_owned();
    }
    let head = NAME_WIDTH * 2 / 3;
    let tail = NAME_WIDTH - head - 1;
    chars[..head].iter().chain(&['…']).chain(&chars[chars.len() - tail..]).collect()
}

/// About three digits with a unit: `812 ns`, `12.3 µs`, `1.25 s`, `3 min 05 s`.
fn time(ns: u64) -> String {
    match ns {
        0 => "0".to_owned(),
        1..1_000 => format!("{ns} ns"),
        1_000..1_000_000 => format!("{} µs", three(ns as f64 / 1e3)),
        1_000_000..1_000_000_000 => format!("{} ms", three(ns as f64 / 1e6)),
        1_000_000_000..120_000_000_000 => format!("{} s", three(ns as f64 / 1e9)),
        _ => format!("{} min {:02} s", ns / 60_000_000_000, ns / 1_000_000_000 % 60),
    }
}

/// A number with about three digits.
fn three(value: f64) -> String {
    if value < 10.0 {
        format!("{value:.2}")
    } else if value < 100.0 {
        format!("{value:.1}")
    } else {
        format!("{value:.0}")
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} bytes"),
        1024..1_048_576 => format!("{} KiB", three(bytes as f64 / 1024.0)),
        1_048_576..1_073_741_824 => format!("{} MiB", three(bytes as f64 / 1_048_576.0)),
        _ => format!("{} GiB", three(bytes as f64 / 1_073_741_824.0)),
    }
}

/// ` 12.3 %`, always seven columns.
fn percent(part: u64, whole: u64) -> String {
    share(if whole == 0 { 0.0 } else { part as f64 / whole as f64 })
}

fn share(share: f64) -> String {
    format!("{:>5.1} %", share * 100.0)
}

/// `2026-11-21 07:05:09 UTC`.
fn utc(ns: u64) -> String {
    let (date, time) = date_and_time(ns);
    format!("{date} {time} UTC")
}
